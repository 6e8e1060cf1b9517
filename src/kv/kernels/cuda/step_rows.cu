#include "src/kv/kernels/cuda/step_rows.h"

#include <cuda_bf16.h>

#include "src/kv/kernels/cuda/ptx/launch.cuh"
#include "src/kv/kernels/cuda/row_layout.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kMostHeads = 16;  // of a group
// A CTA has the group of one KV head and its new rows. The threads of D columns sum a quarter of the inner dimension each.
constexpr int kParts = 4;
constexpr int kAtOnce = 4;  // heads whose sums stand in shared memory together
// Values of the matrix that a thread holds before the launches ahead have ended.
template <int D>
inline constexpr int kHeld = D <= 128 ? D / kParts : 8;

template <int D>
struct StepShared {
  alignas(16) float rows[kMostHeads + 2][D];  // queries of the group, key, value
  float sums[kParts][kAtOnce][D];
};

__device__ __forceinline__ float SumOfWarp(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// One head by one warp: norm where there is a gain, then RoPE; the dimensions past the rotary ones are not turned.
template <int D>
__device__ __forceinline__ void TurnHead(const StepRowsParams& params, const float* x, const float* gain, bool turns, float* out) {
  constexpr int kPairs = D / 64;  // of a lane
  const int lane = threadIdx.x % 32, row = static_cast<int>(blockIdx.x), num_turned = turns && params.turns != nullptr ? params.pairs : 0;
  float first[kPairs], second[kPairs], sum = 0.0f;
  int a[kPairs], b[kPairs];
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    const int pair = 32 * n + lane;
    const bool is_half = params.halves != 0 && pair < num_turned;
    a[n] = is_half ? pair : 2 * pair;
    b[n] = is_half ? pair + num_turned : 2 * pair + 1;
    first[n] = x[a[n]];
    second[n] = x[b[n]];
    sum = fmaf(first[n], first[n], fmaf(second[n], second[n], sum));
  }
  const float factor = gain != nullptr ? 1.0f / sqrtf(SumOfWarp(sum) / static_cast<float>(D) + params.epsilon) : 1.0f;
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    const int pair = 32 * n + lane;
    if (gain != nullptr) {
      first[n] *= factor * gain[a[n]];
      second[n] *= factor * gain[b[n]];
    }
    const float2 turn =
        pair < num_turned ? params.turns[static_cast<int64_t>(row) * params.pairs + pair] : make_float2(1.0f, 0.0f);
    out[a[n]] = first[n] * turn.x - second[n] * turn.y;
    out[b[n]] = first[n] * turn.y + second[n] * turn.x;
  }
}

__device__ __forceinline__ uint4 RoundEight(const float* x) {
  const float4 low = reinterpret_cast<const float4*>(x)[0], high = reinterpret_cast<const float4*>(x)[1];
  const __nv_bfloat162 pairs[4] = {__floats2bfloat162_rn(low.x, low.y), __floats2bfloat162_rn(low.z, low.w),
                                   __floats2bfloat162_rn(high.x, high.y), __floats2bfloat162_rn(high.z, high.w)};
  return *reinterpret_cast<const uint4*>(pairs);
}

// The new rows into their page; `i`: side and 8 dimensions.
template <int D>
__device__ __forceinline__ void StorePiece(const StepRowsParams& params, const StepShared<D>& shared, int i) {
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), side = i / (D / 8), dim = i % (D / 8) * 8;
  const uint4 words = RoundEight(&shared.rows[params.group + side][dim]);
  const int slot = params.positions[row] % 64;
  uint8_t* block = params.row_pool + (static_cast<int64_t>(params.newest_pages[row]) * params.kv_heads + head) * Bf16BlockBytes(D);
  *reinterpret_cast<uint4*>(block + (side == 0 ? Bf16KeyOffset(D, slot, dim) : Bf16ValueOffset(D, slot, dim))) = words;
  // An exponent of ones carries into the place of the sign.
  uint32_t not_finite = 0;
  for (const uint32_t word : {words.x, words.y, words.z, words.w}) not_finite |= (word & 0x7F807F80u) + 0x00800080u;
  if ((not_finite & 0x80008000u) != 0) ReportNonFinite(params.status, {1, params.layer, head, row, slot, side, {}});
}

// Heads [first, first + kAtOnce) of the group into code space. held: of this thread's part of the matrix, the first values.
template <int D>
__device__ __forceinline__ void MultiplyHeads(const StepRowsParams& params, const float* matrix, const float (&held)[kHeld<D>], int first,
                                              StepShared<D>& shared) {
  constexpr int kInner = D / kParts;
  const int column = threadIdx.x % D, part = threadIdx.x / D;
  float sums[kAtOnce] = {};
  const auto add = [&](int j, float m) {
#pragma unroll
    for (int h = 0; h < kAtOnce; ++h) sums[h] = fmaf(shared.rows[first + h][part * kInner + j], m, sums[h]);
  };
#pragma unroll
  for (int j = 0; j < kHeld<D>; ++j) add(j, held[j]);
#pragma unroll 8
  for (int j = kHeld<D>; j < kInner; ++j) add(j, __ldg(matrix + (part * kInner + j) * D + column));
#pragma unroll
  for (int h = 0; h < kAtOnce; ++h) shared.sums[part][h][column] = sums[h];
  __syncthreads();
  // kParts threads to a column: one head each.
  static_assert(kParts == kAtOnce);
  if (first + part < params.group) {
    const float y = (shared.sums[0][part][column] + shared.sums[1][part][column]) + (shared.sums[2][part][column] + shared.sums[3][part][column]);
    const int64_t head = (static_cast<int64_t>(blockIdx.x) * params.kv_heads + blockIdx.y) * params.group + first + part;
    params.in_code_space[head * D + column] = __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
  __syncthreads();
}

template <int D>
__global__ void __launch_bounds__(kParts* D) StepRowsKernel(const __grid_constant__ StepRowsParams params) {
  constexpr int kThreads = kParts * D, kWarps = kThreads / 32;
  __shared__ StepShared<D> shared;
  const int row = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y), group = params.group;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const float* matrix = params.in_code_space != nullptr && params.query_map.data != nullptr
                            ? params.query_map.data + kv_head * params.query_map.head_stride
                            : nullptr;
  float held[kHeld<D>] = {};
  if (matrix != nullptr) {
    const float* mine = matrix + static_cast<int>(threadIdx.x) / D * (D / kParts) * D + static_cast<int>(threadIdx.x) % D;
#pragma unroll
    for (int j = 0; j < kHeld<D>; ++j) held[j] = __ldg(mine + j * D);
  }
  // In this order: attention reads encoded pages as soon as this is called, and a demotion may be running.
  ptx::WaitForPredecessors();
  ptx::LaunchDependents();
  const int num_jobs = params.keys.data != nullptr ? group + 2 : group;
  for (int job = warp; job < num_jobs; job += kWarps) {
    const DeviceRows& source = job < group ? params.queries : (job == group ? params.keys : params.values);
    const int head = job < group ? kv_head * group + job : kv_head;
    const float* gain = job < group ? params.query_gain : (job == group ? params.key_gain : nullptr);
    TurnHead<D>(params, source.data + row * source.token_stride + head * source.head_stride, gain, job <= group, shared.rows[job]);
  }
  __syncthreads();
  const int64_t first_head = (static_cast<int64_t>(row) * params.kv_heads + kv_head) * group;
  for (int i = threadIdx.x; i < group * (D / 8); i += kThreads)
    reinterpret_cast<uint4*>(params.raw + first_head * D)[i] = RoundEight(&shared.rows[0][0] + 8 * i);
  if (params.keys.data != nullptr) {
    // The last threads: the first ones have queries.
    const int i = kThreads - 1 - static_cast<int>(threadIdx.x);
    if (i < 2 * (D / 8)) StorePiece<D>(params, shared, i);
  }
  if (params.in_code_space == nullptr) return;
  for (int head = warp; params.beta != nullptr && head < group; head += kWarps) {
    const float* mean = params.key_mean.data + kv_head * params.key_mean.head_stride;
    float sum = 0.0f;
    for (int i = lane; i < D; i += 32) sum = fmaf(shared.rows[head][i], mean[i], sum);
    sum = SumOfWarp(sum);
    if (lane == 0) params.beta[first_head + head] = params.kappa * sum;
  }
  if (matrix == nullptr) {
    for (int i = threadIdx.x; i < group * (D / 8); i += kThreads)
      reinterpret_cast<uint4*>(params.in_code_space + first_head * D)[i] = RoundEight(&shared.rows[0][0] + 8 * i);
    return;
  }
#pragma unroll 1
  for (int first = 0; first < group; first += kAtOnce) MultiplyHeads<D>(params, matrix, held, first, shared);
}

template <int D>
cudaError_t Launch(const StepRowsParams& params, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(params.num_rows, params.kv_heads);
  config.blockDim = dim3(kParts * D);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, StepRowsKernel<D>, params);
}

}  // namespace

cudaError_t LaunchStepRows(const StepRowsParams& params, cudaStream_t stream) {
  if (params.num_rows < 1 || params.kv_heads < 1 || params.group < 1 || params.group > kMostHeads ||
      (params.turns != nullptr && (params.pairs < 1 || 2 * params.pairs > params.head_dim))) {
    return cudaErrorInvalidValue;
  }
  switch (params.head_dim) {
    case 64:
      return Launch<64>(params, stream);
    case 128:
      return Launch<128>(params, stream);
    case 192:
      return Launch<192>(params, stream);
    case 256:
      return Launch<256>(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::kernels::cuda
