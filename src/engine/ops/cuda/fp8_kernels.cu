#include "src/engine/ops/cuda/fp8_kernels.h"

#include <cuda_fp8.h>

#include "src/engine/ops/cuda/overlapped_launch.cuh"

namespace oscar::engine {
namespace {

constexpr int kThreads = 256;
constexpr float kLargest = 448.0f;

__device__ __forceinline__ float At(const QuantizeRowsParams& params, int64_t i) {
  return params.x != nullptr ? params.x[i] : __uint_as_float(static_cast<uint32_t>(params.bf16[i]) << 16);
}

// The larger one; NaN if one is.
__device__ __forceinline__ float Larger(float a, float b) { return b > a || b != b ? b : a; }

// One CTA per row.
__global__ void __launch_bounds__(kThreads) QuantizeRowsKernel(const QuantizeRowsParams params) {
  __shared__ float parts[kThreads / 32];
  LaunchDependents();
  WaitForPredecessors();
  const int64_t start = static_cast<int64_t>(blockIdx.x) * params.width;
  const int thread = static_cast<int>(threadIdx.x);
  if (static_cast<int>(blockIdx.x) >= params.num_rows) {
    for (int i = thread; i < params.width; i += kThreads) params.codes[start + i] = 0;
    if (thread == 0) params.scales[blockIdx.x] = 1.0f;
    return;
  }
  float largest = 0.0f;
  for (int i = thread; i < params.width; i += kThreads) largest = Larger(largest, fabsf(At(params, start + i)));
  for (int mask = 16; mask > 0; mask >>= 1) largest = Larger(largest, __shfl_xor_sync(~0u, largest, mask));
  if (thread % 32 == 0) parts[thread / 32] = largest;
  __syncthreads();
  largest = parts[thread % (kThreads / 32)];
  for (int mask = 4; mask > 0; mask >>= 1) largest = Larger(largest, __shfl_xor_sync(~0u, largest, mask));
  // Rows too small for a scale are zeros. One that is not finite makes the scale NaN or infinite: whoever reads the product sees it.
  const float scale = largest <= 1e-30f ? 1.0f : largest / kLargest;
  if (thread == 0) params.scales[blockIdx.x] = scale;
  for (int i = thread; i < params.width; i += kThreads) {
    params.codes[start + i] = __nv_cvt_float_to_fp8(At(params, start + i) / scale, __NV_SATFINITE, __NV_E4M3);
  }
}

__global__ void __launch_bounds__(kThreads) EmbedFp8Kernel(const EmbedFp8Params params) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  const int64_t token = params.tokens[i / params.width];
  __nv_fp8_e4m3 code;
  code.__x = params.table[token * params.width + i % params.width];
  params.out[i] = static_cast<float>(code) * params.scales[token];
}

__global__ void __launch_bounds__(kThreads) FinishFp8Kernel(const FinishFp8Params params) {
  LaunchDependents();
  WaitForPredecessors();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  const int64_t row = i / params.width, column = i % params.width, at = row * params.product_stride + column;
  float value = params.product[at] * params.row_scales[row] * params.scales[column];
  if (params.second != nullptr) {
    const float up = params.second[at] * params.row_scales[row] * params.second_scales[column];
    params.out[i] = value / (1.0f + expf(-value)) * up;
    return;
  }
  if (params.bias != nullptr) value += params.bias[column];
  if (params.residual != nullptr) value += params.residual[i];
  params.out[i] = value;
}

unsigned GridOf(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t LaunchQuantizeRows(const QuantizeRowsParams& params, cudaStream_t stream) {
  return LaunchOverlapped(QuantizeRowsKernel, {dim3(static_cast<unsigned>(params.padded_rows)), kThreads, stream}, params);
}

cudaError_t LaunchEmbedFp8(const EmbedFp8Params& params, cudaStream_t stream) {
  return LaunchOverlapped(EmbedFp8Kernel, {dim3(GridOf(int64_t{params.num_rows} * params.width)), kThreads, stream}, params);
}

cudaError_t LaunchFinishFp8(const FinishFp8Params& params, cudaStream_t stream) {
  return LaunchOverlapped(FinishFp8Kernel, {dim3(GridOf(int64_t{params.num_rows} * params.width)), kThreads, stream}, params);
}

}  // namespace oscar::engine
