#include "src/engine/ops/cuda/dense_kernels.h"

#include <cuda_bf16.h>

#include <algorithm>

namespace oscar::engine {
namespace {

constexpr int kThreads = 256;

unsigned GridOf(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__device__ __forceinline__ float FromBf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__global__ void EmbedKernel(const EmbedParams params) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  const int64_t row = i / params.width, column = i % params.width;
  params.out[i] = FromBf16(
      params.table[static_cast<int64_t>(params.tokens[row]) * params.width + column]);
}

__global__ void __launch_bounds__(kThreads) RmsNormKernel(const RmsNormParams params) {
  __shared__ float sums[kThreads / 32];
  const float* x = params.x + static_cast<int64_t>(blockIdx.x) * params.width;
  float* out = params.out + static_cast<int64_t>(blockIdx.x) * params.width;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < params.width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(params.width) + params.epsilon);
  for (int i = threadIdx.x; i < params.width; i += blockDim.x)
    out[i] = x[i] * factor * params.gain[i];
}

// One thread per pair; those past the rotary pairs copy.
__global__ void RopeKernel(const RopeLaunchParams params) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int all_pairs = params.head_dim / 2;
  if (i >= static_cast<int64_t>(params.num_rows) * params.num_heads * all_pairs) return;
  const int64_t head = i / all_pairs;
  const int pair = static_cast<int>(i % all_pairs);
  const float* x = params.x + head * params.head_dim;
  float* out = params.out + head * params.head_dim;
  if (pair >= params.pairs) {
    out[2 * pair] = x[2 * pair];
    out[2 * pair + 1] = x[2 * pair + 1];
    return;
  }
  const int a = params.halves ? pair : 2 * pair, b = params.halves ? pair + params.pairs : a + 1;
  // In double: positions times angles reach many turns.
  double sine, cosine;
  sincos(static_cast<double>(params.positions[head / params.num_heads]) *
             static_cast<double>(params.angles[pair]),
         &sine, &cosine);
  const float c = static_cast<float>(cosine) * params.magnitude,
              s = static_cast<float>(sine) * params.magnitude;
  const float first = x[a], second = x[b];
  out[a] = first * c - second * s;
  out[b] = first * s + second * c;
}

__global__ void AddKernel(const float* a, const float* b, float* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = a[i] + b[i];
}

__global__ void AddBiasKernel(const float* x, const float* bias, float* out, int64_t count,
                              int width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = x[i] + bias[i % width];
}

__global__ void SwiGluKernel(const float* gate, const float* up, float* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

__global__ void RoundToBf16Kernel(const float* x, uint16_t* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
}

__global__ void GatherKernel(const GatherParams params) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  params.out[i] = params.x[static_cast<int64_t>(params.rows[i / params.width]) * params.width +
                           i % params.width];
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedParams& params, cudaStream_t stream) {
  EmbedKernel<<<GridOf(int64_t{params.num_rows} * params.width), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  const int threads = std::clamp((params.width + 127) / 128 * 32, 32, kThreads);
  RmsNormKernel<<<static_cast<unsigned>(params.num_groups), threads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchRope(const RopeLaunchParams& params, cudaStream_t stream) {
  const int64_t count = int64_t{params.num_rows} * params.num_heads * (params.head_dim / 2);
  RopeKernel<<<GridOf(count), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchAdd(const float* a, const float* b, float* out, int64_t count,
                      cudaStream_t stream) {
  AddKernel<<<GridOf(count), kThreads, 0, stream>>>(a, b, out, count);
  return cudaGetLastError();
}

cudaError_t LaunchAddBias(const float* x, const float* bias, float* out, int64_t count, int width,
                          cudaStream_t stream) {
  AddBiasKernel<<<GridOf(count), kThreads, 0, stream>>>(x, bias, out, count, width);
  return cudaGetLastError();
}

cudaError_t LaunchSwiGlu(const float* gate, const float* up, float* out, int64_t count,
                         cudaStream_t stream) {
  SwiGluKernel<<<GridOf(count), kThreads, 0, stream>>>(gate, up, out, count);
  return cudaGetLastError();
}

cudaError_t LaunchRoundToBf16(const float* x, uint16_t* out, int64_t count, cudaStream_t stream) {
  RoundToBf16Kernel<<<GridOf(count), kThreads, 0, stream>>>(x, out, count);
  return cudaGetLastError();
}

cudaError_t LaunchGather(const GatherParams& params, cudaStream_t stream) {
  GatherKernel<<<GridOf(int64_t{params.num_rows} * params.width), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace oscar::engine
