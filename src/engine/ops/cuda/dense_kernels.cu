#include "src/engine/ops/cuda/dense_kernels.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "src/engine/ops/cuda/overlapped_launch.cuh"

namespace oscar::engine {
namespace {

constexpr int kThreads = 256;

unsigned GridOf(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__device__ __forceinline__ float FromBf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__global__ void EmbedKernel(const EmbedParams params) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  const int64_t row = i / params.width, column = i % params.width;
  params.out[i] = FromBf16(
      params.table[static_cast<int64_t>(params.tokens[row]) * params.width + column]);
}

constexpr int kMostNormThreads = 1024, kNormValues = 8;  // values of a thread that stay in registers

// One CTA per group. Values beyond those that the registers hold are read twice.
__global__ void __launch_bounds__(kMostNormThreads) RmsNormKernel(const RmsNormParams params) {
  __shared__ float sums[kMostNormThreads / 32];
  LaunchDependents();
  WaitForPredecessors();
  const float* x = params.x + static_cast<int64_t>(blockIdx.x) * params.width;
  float* out = params.out + static_cast<int64_t>(blockIdx.x) * params.width;
  const int stride = static_cast<int>(blockDim.x);
  float values[kNormValues], sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kNormValues; ++n) {
    const int i = n * stride + static_cast<int>(threadIdx.x);
    values[n] = i < params.width ? x[i] : 0.0f;
    sum = fmaf(values[n], values[n], sum);
  }
  for (int i = kNormValues * stride + static_cast<int>(threadIdx.x); i < params.width; i += stride)
    sum = fmaf(x[i], x[i], sum);
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(params.width) + params.epsilon);
#pragma unroll
  for (int n = 0; n < kNormValues; ++n) {
    const int i = n * stride + static_cast<int>(threadIdx.x);
    if (i < params.width) out[i] = values[n] * factor * params.gain[i];
  }
  for (int i = kNormValues * stride + static_cast<int>(threadIdx.x); i < params.width; i += stride)
    out[i] = x[i] * factor * params.gain[i];
}

// One warp per head of a row, its lanes along the pairs; the pairs past the rotary ones are not turned.
__global__ void __launch_bounds__(kThreads)
    RopeKernel(const __grid_constant__ RopeLaunchParams params) {
  LaunchDependents();
  WaitForPredecessors();
  const RopeJob& job = params.jobs[blockIdx.y];
  const int64_t head =
      static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (head >= static_cast<int64_t>(params.num_rows) * job.num_heads) return;
  const int lane = threadIdx.x % 32;
  const float* x = job.x + head * params.head_dim;
  float* out = job.out + head * params.head_dim;
  float factor = 1.0f;
  if (job.gain != nullptr) {
    float sum = 0.0f;
    for (int i = lane; i < params.head_dim; i += 32) sum = fmaf(x[i], x[i], sum);
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    factor = 1.0f / sqrtf(sum / static_cast<float>(params.head_dim) + job.epsilon);
  }
  const float2* turns = params.turns + head / job.num_heads * params.pairs;
  for (int pair = lane; pair < params.head_dim / 2; pair += 32) {
    const bool is_half = params.halves && pair < params.pairs;
    const int a = is_half ? pair : 2 * pair, b = is_half ? pair + params.pairs : a + 1;
    float first = x[a], second = x[b];
    if (job.gain != nullptr) {
      first *= factor * job.gain[a];
      second *= factor * job.gain[b];
    }
    if (pair < params.pairs) {
      const float2 turn = turns[pair];
      out[a] = first * turn.x - second * turn.y;
      out[b] = first * turn.y + second * turn.x;
    } else {
      out[a] = first;
      out[b] = second;
    }
  }
}

__global__ void TurnsKernel(const TurnsParams params) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.pairs) return;
  // In double: positions times angles reach many turns.
  double sine, cosine;
  sincos(static_cast<double>(params.positions[i / params.pairs]) * static_cast<double>(params.angles[i % params.pairs]), &sine, &cosine);
  params.turns[i] = make_float2(static_cast<float>(cosine) * params.magnitude, static_cast<float>(sine) * params.magnitude);
}

__global__ void AddKernel(const float* a, const float* b, float* out, int64_t count) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = a[i] + b[i];
}

__global__ void AddBiasKernel(const float* x, const float* bias, float* out, int64_t count,
                              int width) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = x[i] + bias[i % width];
}

__global__ void SwiGluKernel(const float* gate, const float* up, float* out, int64_t count) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

__global__ void RoundToBf16Kernel(const float* x, uint16_t* out, int64_t count) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
}

// splitmix64 of the index, then Box-Muller.
__global__ void RandomNormalKernel(uint16_t* out, int64_t count, float deviation, uint64_t seed) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  uint64_t x = (seed << 40) + static_cast<uint64_t>(i) + 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  const float u = (static_cast<float>(x >> 40) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(x & 0xFFFFFF) * 0x1p-24f;
  const float normal = sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
  out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(deviation * normal));
}

constexpr int kBestCtas = 16;  // of a row

__global__ void __launch_bounds__(kThreads) BestLogitsKernel(const BestLogitsParams params) {
  const float* logits = params.logits + static_cast<int64_t>(blockIdx.y) * params.width;
  unsigned long long best = 0;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < params.width; i += kBestCtas * kThreads) {
    const uint32_t bits = __float_as_uint(logits[i]);
    const bool is_finite = (bits & 0x7F800000u) != 0x7F800000u;
    // -0 counts as 0.
    const uint32_t ordered = (bits << 1) == 0 ? 0x80000000u : ((bits >> 31) != 0 ? ~bits : bits | 0x80000000u);
    const unsigned long long key = (static_cast<unsigned long long>(is_finite ? ordered : kNotFiniteLogit) << 32) | ~static_cast<uint32_t>(i);
    best = key > best ? key : best;
  }
  for (int mask = 16; mask > 0; mask >>= 1) {
    const unsigned long long other = __shfl_xor_sync(~0u, best, mask);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0 && best != 0) atomicMax(reinterpret_cast<unsigned long long*>(params.best + blockIdx.y), best);
}

__global__ void GatherKernel(const GatherParams params) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  params.out[i] = params.x[static_cast<int64_t>(params.rows[i / params.width]) * params.width +
                           i % params.width];
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedParams& params, cudaStream_t stream) {
  return LaunchOverlapped(EmbedKernel, {dim3(GridOf(int64_t{params.num_rows} * params.width)), kThreads, stream}, params);
}

cudaError_t LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  const int threads = std::clamp((params.width + 127) / 128 * 32, 32, kMostNormThreads);
  return LaunchOverlapped(RmsNormKernel,
                          {dim3(static_cast<unsigned>(params.num_groups)),
                           static_cast<unsigned>(threads), stream},
                          params);
}

cudaError_t LaunchRope(const RopeLaunchParams& params, cudaStream_t stream) {
  if (params.num_jobs < 1 || params.num_jobs > kMostRopeJobs) return cudaErrorInvalidValue;
  int64_t heads = 0;
  for (int i = 0; i < params.num_jobs; ++i)
    heads = std::max(heads, int64_t{params.num_rows} * params.jobs[i].num_heads);
  const dim3 grid(GridOf(32 * heads), static_cast<unsigned>(params.num_jobs));
  return LaunchOverlapped(RopeKernel, {grid, kThreads, stream}, params);
}

cudaError_t LaunchTurns(const TurnsParams& params, cudaStream_t stream) {
  return LaunchOverlapped(TurnsKernel, {dim3(GridOf(int64_t{params.num_rows} * params.pairs)), kThreads, stream}, params);
}

cudaError_t LaunchAdd(const float* a, const float* b, float* out, int64_t count,
                      cudaStream_t stream) {
  return LaunchOverlapped(AddKernel, {dim3(GridOf(count)), kThreads, stream}, a, b, out, count);
}

cudaError_t LaunchAddBias(const float* x, const float* bias, float* out, int64_t count, int width,
                          cudaStream_t stream) {
  return LaunchOverlapped(AddBiasKernel, {dim3(GridOf(count)), kThreads, stream}, x, bias, out, count, width);
}

cudaError_t LaunchSwiGlu(const float* gate, const float* up, float* out, int64_t count,
                         cudaStream_t stream) {
  return LaunchOverlapped(SwiGluKernel, {dim3(GridOf(count)), kThreads, stream}, gate, up, out, count);
}

cudaError_t LaunchRoundToBf16(const float* x, uint16_t* out, int64_t count, cudaStream_t stream) {
  return LaunchOverlapped(RoundToBf16Kernel, {dim3(GridOf(count)), kThreads, stream}, x, out, count);
}

cudaError_t LaunchRandomNormal(uint16_t* out, int64_t count, float deviation, uint64_t seed,
                               cudaStream_t stream) {
  return LaunchOverlapped(RandomNormalKernel, {dim3(GridOf(count)), kThreads, stream}, out, count, deviation, seed);
}

cudaError_t LaunchBestLogits(const BestLogitsParams& params, cudaStream_t stream) {
  if (params.num_rows < 1 || params.width < 1) return cudaErrorInvalidValue;
  BestLogitsKernel<<<dim3(kBestCtas, static_cast<unsigned>(params.num_rows)), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchGather(const GatherParams& params, cudaStream_t stream) {
  return LaunchOverlapped(GatherKernel, {dim3(GridOf(int64_t{params.num_rows} * params.width)), kThreads, stream}, params);
}

}  // namespace oscar::engine
