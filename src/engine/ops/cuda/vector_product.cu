// Products of few rows with bf16 matrices: bound by the reading of the matrices. A warp makes two outputs at a time, lanes
// along the inner dimension; activations stay in f32.
#include <algorithm>

#include "src/engine/ops/cuda/dense_kernels.h"

namespace oscar::engine {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kOutputs = 2;

__device__ __forceinline__ void AddProducts(const uint4& words, const float (&x)[8], float& sum) {
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(pairs[i] << 16), x[2 * i], sum);
    sum = fmaf(__uint_as_float(pairs[i] & 0xFFFF0000u), x[2 * i + 1], sum);
  }
}

// sums[o][m] of the rows `matrix_rows`, complete in all lanes.
template <int kRows>
__device__ __forceinline__ void DotRows(const VectorProductParams& params,
                                        const uint16_t* const (&matrix_rows)[kOutputs], int lane,
                                        float (&sums)[kOutputs][kRows]) {
#pragma unroll(kRows > 2 ? 2 : 4)
  for (int k = 8 * lane; k < params.in_width; k += 256) {
    uint4 words[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
      words[o] = __ldg(reinterpret_cast<const uint4*>(matrix_rows[o] + k));
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const float4* source =
          reinterpret_cast<const float4*>(params.x + static_cast<int64_t>(m) * params.in_width + k);
      const float4 low = source[0], high = source[1];
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) AddProducts(words[o], x, sums[o][m]);
    }
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1)
        sums[o][m] += __shfl_xor_sync(~0u, sums[o][m], mask);
    }
  }
}

// The grid is (CTAs of the widest job, jobs).
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    VectorProductsKernel(const __grid_constant__ VectorProductParams params) {
  const MatrixJob& job = params.jobs[blockIdx.y];
  const int lane = threadIdx.x % 32;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) *
                    kOutputs;
  if (first >= job.out_width) return;
  const uint16_t* rows[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    rows[o] = job.matrix +
              static_cast<int64_t>(min(first + o, job.out_width - 1)) * params.in_width;
  }
  float sums[kOutputs][kRows] = {};
  DotRows<kRows>(params, rows, lane, sums);
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (lane != o * kRows + m || first + o >= job.out_width) continue;
      const int64_t index = static_cast<int64_t>(m) * job.out_width + first + o;
      float y = sums[o][m];
      if (job.bias != nullptr) y += job.bias[first + o];
      if (job.residual != nullptr) y += job.residual[index];
      job.out[index] = y;
    }
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    GatedVectorProductKernel(const __grid_constant__ VectorProductParams params) {
  const int lane = threadIdx.x % 32;
  const int output = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (output >= params.jobs[0].out_width) return;
  const int64_t start = static_cast<int64_t>(output) * params.in_width;
  const uint16_t* const rows[kOutputs] = {params.jobs[0].matrix + start,
                                          params.jobs[1].matrix + start};
  float sums[kOutputs][kRows] = {};
  DotRows<kRows>(params, rows, lane, sums);
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if (lane != m) continue;
    const float gate = sums[0][m];
    params.jobs[0].out[static_cast<int64_t>(m) * params.jobs[0].out_width + output] =
        gate / (1.0f + expf(-gate)) * sums[1][m];
  }
}

bool IsValid(const VectorProductParams& params) {
  return params.num_rows >= 1 && params.num_rows <= kMostVectorRows && params.in_width % 8 == 0 &&
         params.num_jobs >= 1 && params.num_jobs <= kMostMatrixJobs;
}

template <class Launch>
cudaError_t ForRows(int num_rows, const Launch& launch) {
  switch (num_rows) {
    case 1:
      launch.template operator()<1>();
      break;
    case 2:
      launch.template operator()<2>();
      break;
    case 3:
      launch.template operator()<3>();
      break;
    default:
      launch.template operator()<4>();
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchVectorProducts(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params)) return cudaErrorInvalidValue;
  int widest = 0;
  for (int i = 0; i < params.num_jobs; ++i) widest = std::max(widest, params.jobs[i].out_width);
  const dim3 grid((widest + kWarps * kOutputs - 1) / (kWarps * kOutputs), params.num_jobs);
  return ForRows(params.num_rows, [&]<int kRows>() {
    VectorProductsKernel<kRows><<<grid, kThreads, 0, stream>>>(params);
  });
}

cudaError_t LaunchGatedVectorProduct(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params) || params.num_jobs != 2 ||
      params.jobs[0].out_width != params.jobs[1].out_width) {
    return cudaErrorInvalidValue;
  }
  const unsigned grid = (params.jobs[0].out_width + kWarps - 1) / kWarps;
  return ForRows(params.num_rows, [&]<int kRows>() {
    GatedVectorProductKernel<kRows><<<grid, kThreads, 0, stream>>>(params);
  });
}

}  // namespace oscar::engine
