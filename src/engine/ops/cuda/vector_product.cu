// Products of few rows with bf16 matrices: bound by the reading of the matrices. A CTA makes a few outputs, its threads along the
// inner dimension, so that even a small product has the whole machine reading; activations stay in f32.
#include <algorithm>

#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/cuda/overlapped_launch.cuh"

namespace oscar::engine {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kStep = 8 * kThreads;  // inner elements that a CTA reads at once
// Rows of the matrix that a CTA goes over together: what it reads of the activations serves them all.
template <int kRows>
constexpr int kOutputs = kRows > 2 ? 4 : 2;

// CTAs that may be there before the kernel ahead has ended.
constexpr unsigned kFirstCtas = 1024;

// The start of the rows, on its way to L2 while the kernel before ends. Later CTAs would only ask twice.
template <int kCount>
__device__ __forceinline__ void PrefetchRows(const uint16_t* const (&rows)[kCount], int in_width) {
  constexpr int kThreadsPerRow = kThreads / kCount;
  const int offset = 128 * (static_cast<int>(threadIdx.x) % kThreadsPerRow);
  if (offset >= 2 * in_width || blockIdx.x + blockIdx.y * gridDim.x >= kFirstCtas) return;
#pragma unroll
  for (int o = 0; o < kCount; ++o) {
    if (static_cast<int>(threadIdx.x) / kThreadsPerRow == o)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(rows[o]) + offset));
  }
}

__device__ __forceinline__ void AddProducts(const uint4& words, const float (&x)[8], float& sum) {
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(pairs[i] << 16), x[2 * i], sum);
    sum = fmaf(__uint_as_float(pairs[i] & 0xFFFF0000u), x[2 * i + 1], sum);
  }
}

template <int kRows, int kCount>
struct SumsOfWarps {
  float values[kWarps][kCount][kRows];
};

// Total of output o and row m, in the first kCount * kRows threads: thread o * kRows + m.
template <int kRows, int kCount>
__device__ __forceinline__ float DotRows(const VectorProductParams& params,
                                         const uint16_t* const (&matrix_rows)[kCount],
                                         SumsOfWarps<kRows, kCount>& shared) {
  float sums[kCount][kRows] = {};
#pragma unroll(kRows > 2 ? 1 : 4)
  for (int k = 8 * static_cast<int>(threadIdx.x); k < params.in_width; k += kStep) {
    uint4 words[kCount];
#pragma unroll
    for (int o = 0; o < kCount; ++o)
      words[o] = __ldcs(reinterpret_cast<const uint4*>(matrix_rows[o] + k));
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const float4* source =
          reinterpret_cast<const float4*>(params.x + static_cast<int64_t>(m) * params.in_width + k);
      const float4 low = source[0], high = source[1];
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int o = 0; o < kCount; ++o) AddProducts(words[o], x, sums[o][m]);
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 0; o < kCount; ++o) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      float sum = sums[o][m];
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
      if (lane == 0) shared.values[warp][o][m] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x >= kCount * kRows) return 0.0f;
  const int o = static_cast<int>(threadIdx.x) / kRows, m = static_cast<int>(threadIdx.x) % kRows;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += shared.values[w][o][m];
  return total;
}

// The grid is (CTAs of the widest job, jobs).
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    VectorProductsKernel(const __grid_constant__ VectorProductParams params) {
  constexpr int kCount = kOutputs<kRows>;
  __shared__ SumsOfWarps<kRows, kCount> shared;
  LaunchDependents();
  const MatrixJob& job = params.jobs[blockIdx.y];
  const int first = static_cast<int>(blockIdx.x) * kCount;
  if (first >= job.out_width) {
    WaitForPredecessors();
    return;
  }
  const uint16_t* rows[kCount];
#pragma unroll
  for (int o = 0; o < kCount; ++o) {
    rows[o] = job.matrix +
              static_cast<int64_t>(min(first + o, job.out_width - 1)) * params.in_width;
  }
  PrefetchRows<kCount>(rows, params.in_width);
  WaitForPredecessors();
  float y = DotRows<kRows, kCount>(params, rows, shared);
  const int o = static_cast<int>(threadIdx.x) / kRows, m = static_cast<int>(threadIdx.x) % kRows;
  if (threadIdx.x >= kCount * kRows || first + o >= job.out_width) return;
  const int64_t index = static_cast<int64_t>(m) * job.out_width + first + o;
  if (job.bias != nullptr) y += job.bias[first + o];
  if (job.residual != nullptr) y += job.residual[index];
  job.out[index] = y;
}

// Half of the rows of a CTA are gates, half are ups.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    GatedVectorProductKernel(const __grid_constant__ VectorProductParams params) {
  constexpr int kCount = kOutputs<kRows>, kHalf = kCount / 2;
  __shared__ SumsOfWarps<kRows, kCount> shared;
  LaunchDependents();
  const int width = params.jobs[0].out_width, first = static_cast<int>(blockIdx.x) * kHalf;
  const uint16_t* rows[kCount];
#pragma unroll
  for (int o = 0; o < kCount; ++o) {
    rows[o] = params.jobs[o / kHalf].matrix +
              static_cast<int64_t>(min(first + o % kHalf, width - 1)) * params.in_width;
  }
  PrefetchRows<kCount>(rows, params.in_width);
  WaitForPredecessors();
  const float sum = DotRows<kRows, kCount>(params, rows, shared);
  // Thread o * kRows + m has a gate, the thread kHalf * kRows further its up.
  const float up = __shfl_down_sync(~0u, sum, kHalf * kRows);
  const int o = static_cast<int>(threadIdx.x) / kRows, m = static_cast<int>(threadIdx.x) % kRows;
  if (o >= kHalf || first + o >= width) return;
  params.jobs[0].out[static_cast<int64_t>(m) * width + first + o] = sum / (1.0f + expf(-sum)) * up;
}

bool IsValid(const VectorProductParams& params) {
  return params.num_rows >= 1 && params.num_rows <= kMostVectorRows && params.in_width % 8 == 0 &&
         params.num_jobs >= 1 && params.num_jobs <= kMostMatrixJobs;
}

template <class Launch>
cudaError_t ForRows(int num_rows, const Launch& launch) {
  switch (num_rows) {
    case 1:
      return launch.template operator()<1>();
    case 2:
      return launch.template operator()<2>();
    case 3:
      return launch.template operator()<3>();
    default:
      return launch.template operator()<4>();
  }
}

}  // namespace

cudaError_t LaunchVectorProducts(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params)) return cudaErrorInvalidValue;
  int widest = 0;
  for (int i = 0; i < params.num_jobs; ++i) widest = std::max(widest, params.jobs[i].out_width);
  return ForRows(params.num_rows, [&]<int kRows>() {
    const dim3 grid((widest + kOutputs<kRows> - 1) / kOutputs<kRows>, params.num_jobs);
    return LaunchOverlapped(VectorProductsKernel<kRows>, {grid, kThreads, stream}, params);
  });
}

cudaError_t LaunchGatedVectorProduct(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params) || params.num_jobs != 2 ||
      params.jobs[0].out_width != params.jobs[1].out_width) {
    return cudaErrorInvalidValue;
  }
  return ForRows(params.num_rows, [&]<int kRows>() {
    constexpr int kHalf = kOutputs<kRows> / 2;
    const dim3 grid((params.jobs[0].out_width + kHalf - 1) / kHalf);
    return LaunchOverlapped(GatedVectorProductKernel<kRows>, {grid, kThreads, stream}, params);
  });
}

}  // namespace oscar::engine
