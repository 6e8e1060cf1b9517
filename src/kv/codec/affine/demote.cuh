// Demotion of BF16 pages to 2-bit pages, fused: one CTA per (page, KV head, layer) reads the 128 rows of K and V once
// and writes one block (gpu.md 7.2). The encoder is encode.cuh, the byte order pack.cuh.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/encode.cuh"
#include "src/kv/codec/affine/pack.cuh"
#include "src/kv/kernels/cuda/demote_params.h"

namespace oscar::affine {

using kernels::cuda::DemoteJob;
using kernels::cuda::DemotePagesParams;
using kernels::cuda::DeviceStatus;

inline constexpr int kDemoteThreads = 256;

// Notes the first error.
__device__ __forceinline__ void ReportDemotion(DeviceStatus* status, int layer, int head, int job, int token,
                                               int side) {
  if (atomicCAS(&status->code, 0, 1) != 0) return;
  status->layer = layer;
  status->head = head;
  status->job = job;
  status->token = token;
  status->side = side;
}

template <int D>
__global__ void __launch_bounds__(kDemoteThreads) DemotePagesKernel(const __grid_constant__ DemotePagesParams params) {
  namespace layout = device;
  constexpr int kPieces = D / 64;  // 16-byte pieces of a lane
  constexpr int kRowsAtOnce = kDemoteThreads / layout::kRowLanes;
  constexpr int kCodeStride = D + 16;  // bytes of a row of value codes; spread over the banks
  __shared__ alignas(16) uint8_t block[layout::BlockBytes(D)];
  __shared__ alignas(16) uint8_t value_codes[layout::kTokens * kCodeStride];
  const int job = blockIdx.x, head = blockIdx.y, layer = blockIdx.z;
  const int lane_in_row = threadIdx.x % layout::kRowLanes;
  const DemoteJob pages = params.jobs[job];
  const uint8_t* rows = params.row_pool + layer * params.row_layer_stride +
                        (static_cast<int64_t>(pages.row_page) * params.kv_heads + head) * layout::Bf16BlockBytes(D);
  // Rows 0-63 are keys, 64-127 values; a warp's rows are always of one side.
#pragma unroll 1
  for (int row = threadIdx.x / layout::kRowLanes; row < 2 * layout::kTokens; row += kRowsAtOnce) {
    const int side = row >= layout::kTokens ? 1 : 0, token = row % layout::kTokens;
    uint32_t values[4 * kPieces];
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      const int piece = (lane_in_row + 8 * n) ^ (token & 7);
      const uint4 v = __ldcs(reinterpret_cast<const uint4*>(rows + static_cast<int64_t>(row) * (2 * D) + piece * 16));
      values[4 * n] = v.x;
      values[4 * n + 1] = v.y;
      values[4 * n + 2] = v.z;
      values[4 * n + 3] = v.w;
    }
    layout::DeviceGrid grid;
    const bool fits =
        layout::MinMaxGridOfRow(values, side == 0 ? params.key_clip_index : params.value_clip_index, 3, grid);
    if (!fits && lane_in_row == 0) ReportDemotion(params.status, layer, head, job, token, side);
    uint32_t codes[kPieces][2];
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        codes[n][i] = layout::FourCodes(values[4 * n + 2 * i], values[4 * n + 2 * i + 1], grid, 3);
      }
    }
    if (side == 0) {
      layout::PackKeyRow<D>(token, lane_in_row, codes, block);
    } else {
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        *reinterpret_cast<uint2*>(value_codes + token * kCodeStride + 8 * (lane_in_row + 8 * n)) =
            make_uint2(codes[n][0], codes[n][1]);
      }
    }
    if (lane_in_row == 0) {
      const int place = side == 0 ? layout::KeyPairOffset(D, token) : layout::ValuePairOffset(D, token);
      *reinterpret_cast<__half2*>(block + place) = __halves2half2(grid.scale, grid.offset);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < D; i += kDemoteThreads) {  // D / 4 groups of dimensions x 4 values of t
    layout::PackValueWords<D>(value_codes, kCodeStride, i / 4 * 4, i % 4, block);
  }
  __syncthreads();
  uint8_t* target = params.code_pool + layer * params.code_layer_stride +
                    (static_cast<int64_t>(pages.code_page) * params.kv_heads + head) * layout::BlockBytes(D);
  for (int i = threadIdx.x; i < layout::BlockBytes(D) / 16; i += kDemoteThreads) {
    reinterpret_cast<uint4*>(target)[i] = reinterpret_cast<const uint4*>(block)[i];
  }
}

}  // namespace oscar::affine
