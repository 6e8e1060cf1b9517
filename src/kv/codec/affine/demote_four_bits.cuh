// Demotion of BF16 pages to 4-bit pages by the min-max encoder without a clip (method.md 3.1): the same steps as demote.cuh, written for
// few lines instead of speed. One CTA per side of a (page, KV head, layer); neighbouring threads share a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "src/kv/codec/affine/demote.cuh"

namespace oscar::affine::four_bits {

inline constexpr int kBits = 4, kLargestCode = 15;

template <int D>
inline constexpr int kRowThreads = device::kTransformThreads<D> / device::kTokens;

template <int D>
struct Shared {
  DemoteShared<D> page;
  device::MatrixSlices<D> slices;  // then the words of the side
};

template <int D>
__device__ __forceinline__ float ValueAt(const uint8_t* rows, int token, int dim) {
  const int piece = (dim / 8) ^ (token & 7);
  return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(rows + token * (2 * D) + 16 * piece + 2 * (dim % 8)));
}

// Codes of the thread's part of a row to `words`, its pair to the block. False when the row is not finite or beyond fp16.
template <int D>
__device__ __forceinline__ bool EncodeRow(const uint8_t* rows, int token, int part, bool is_key, uint32_t* words, uint8_t* block) {
  float low = ValueAt<D>(rows, token, part), high = low, spoiled = 0.0f;
  for (int dim = part; dim < D; dim += kRowThreads<D>) {
    const float y = ValueAt<D>(rows, token, dim);
    low = fminf(low, y);
    high = fmaxf(high, y);
    spoiled = __fadd_rn(spoiled, __fsub_rn(y, y));  // 0, or NaN from the first value on that is not finite
  }
#pragma unroll
  for (int mask = 1; mask < kRowThreads<D>; mask <<= 1) {
    low = fminf(low, __shfl_xor_sync(~0u, low, mask));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, mask));
    spoiled = __fadd_rn(spoiled, __shfl_xor_sync(~0u, spoiled, mask));
  }
  const __half offset = __float2half_rn(__fadd_rn(low, 0.0f));  // -0 is stored as +0
  const __half scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), static_cast<float>(kLargestCode)));
  const float shift = __half2float(offset), step = __half2float(scale);
  const float reciprocal = step == 0.0f ? 0.0f : __fdiv_rn(1.0f, step);
  for (int dim = part; dim < D; dim += kRowThreads<D>) {
    const float steps = __fmul_rn(__fsub_rn(ValueAt<D>(rows, token, dim), shift), reciprocal);
    const float level = fminf(fmaxf(floorf(__fadd_rn(steps, 0.5f)), 0.0f), static_cast<float>(kLargestCode));
    const uint32_t code = static_cast<uint32_t>(level);
#pragma unroll
    for (int plane = 0; plane < device::NumPlanes(kBits); ++plane) {
      const device::CodePlace place = device::PlanePlace(kBits, is_key, D, token, dim, plane);
      atomicOr(&words[place.byte / 4], ((code >> (2 * plane)) & 3u) << (8 * (place.byte % 4) + place.shift));
    }
  }
  if (part == 0) {
    *reinterpret_cast<__half2*>(block + (is_key ? device::KeyPairOffset(kBits, D, token) : device::ValuePairOffset(kBits, D, token))) =
        __halves2half2(scale, offset);
  }
  return spoiled == 0.0f && !__hisinf(scale) && !__hisinf(offset);
}

template <int D>
__global__ void __launch_bounds__(device::kTransformThreads<D>)
    DemotePagesKernel(const __grid_constant__ DemotePagesParams params) {
  constexpr int kThreads = device::kTransformThreads<D>, kWords = device::SideBytes(kBits, D) / 4;
  __shared__ Shared<D> shared;
  static_assert(sizeof(shared.slices.rows) >= 4 * kWords);
  const DemotePlace place = {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                             static_cast<int>(blockIdx.x >> 1), static_cast<int>(blockIdx.x & 1)};
  device::ptx::LaunchDependents();
  device::ptx::WaitForPredecessors();
  const DemoteJob pages = params.jobs[place.job];
  const DemoteSide& side = params.sides[place.side];
  ReadRows<D, kThreads>(params.row_pool + place.layer * params.row_layer_stride +
                            (static_cast<int64_t>(pages.row_page) * params.kv_heads + place.head) * device::Bf16BlockBytes(D) +
                            place.side * (device::Bf16BlockBytes(D) / 2),
                        shared.page);
  if (side.matrix != nullptr) {
    device::TransformRows<D>(
        side.matrix + place.layer * side.layer_stride + place.head * side.head_stride,
        side.mean == nullptr ? nullptr : side.mean + place.layer * side.mean_layer_stride + place.head * side.mean_head_stride,
        shared.page.rows, shared.slices);
  }
  uint32_t* words = reinterpret_cast<uint32_t*>(&shared.slices.rows[0][0][0]);
  for (int i = threadIdx.x; i < kWords; i += kThreads) words[i] = 0;
  __syncthreads();
  uint8_t* block = params.code_pool + place.layer * params.code_layer_stride +
                   (static_cast<int64_t>(pages.code_page) * params.kv_heads + place.head) * device::BlockBytes(kBits, D);
  const int token = static_cast<int>(threadIdx.x) / kRowThreads<D>, part = static_cast<int>(threadIdx.x) % kRowThreads<D>;
  if (!EncodeRow<D>(shared.page.rows, token, part, place.side == 0, words, block) && part == 0) {
    kernels::cuda::ReportNonFinite(params.status,
                                   {1, params.first_layer + place.layer, place.head, place.job, token, place.side, {}});
  }
  __syncthreads();
  uint32_t* codes = reinterpret_cast<uint32_t*>(block + (place.side == 0 ? 0 : device::SideBytes(kBits, D)));
  for (int i = threadIdx.x; i < kWords; i += kThreads) codes[i] = words[i];
}

}  // namespace oscar::affine::four_bits
