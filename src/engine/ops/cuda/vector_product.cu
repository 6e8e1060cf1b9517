// Products of few rows with bf16 matrices: bound by the reading of the matrices. As many CTAs as the machine holds stay for the whole
// launch; a warp makes a few outputs at a time, its lanes along the inner dimension, and asks for its first piece of the matrices before
// the kernel ahead has ended. Activations stay in f32.
#include <algorithm>

#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/cuda/overlapped_launch.cuh"

namespace oscar::engine {
namespace {

constexpr int kStep = 8 * 32;  // inner elements that a warp reads at once

// By rows of activations: outputs of a warp (what it reads of the activations serves them all), steps asked for at once, warps of a CTA,
// CTAs of a multiprocessor. Eight 16-byte reads are in flight per thread.
template <int kRows>
struct Tuning {
  static constexpr int kOutputs = kRows > 1 ? 4 : 2, kUnroll = kRows > 1 ? 2 : 4;
  static constexpr int kWarps = kRows > 1 ? 12 : 8, kCtas = kRows > 1 ? 1 : 3, kThreads = 32 * kWarps;
};

// Zeros behind the end.
template <int kCount>
__device__ __forceinline__ void LoadWords(const uint16_t* const (&rows)[kCount], int k, int in_width, uint4 (&words)[kCount]) {
#pragma unroll
  for (int o = 0; o < kCount; ++o)
    words[o] = k < in_width ? __ldcs(reinterpret_cast<const uint4*>(rows[o] + k)) : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ void Load8(const float* from, float (&x)[8]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ __forceinline__ void AddProducts(const uint4& words, const float (&x)[8], float& sum) {
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(pairs[i] << 16), x[2 * i], sum);
    sum = fmaf(__uint_as_float(pairs[i] & 0xFFFF0000u), x[2 * i + 1], sum);
  }
}

__device__ __forceinline__ float SumOfWarp(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(~0u, value, mask);
  return value;
}

// What the norm multiplies each row with; by the whole CTA.
template <int kRows>
__device__ __forceinline__ void NormFactors(const VectorProductParams& params, float (&factors)[kRows]) {
  constexpr int kWarps = Tuning<kRows>::kWarps, kThreads = Tuning<kRows>::kThreads;
  __shared__ float sums[kRows][kWarps];
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    float sum = 0.0f;
    for (int k = 4 * static_cast<int>(threadIdx.x); k < params.in_width; k += 4 * kThreads) {
      const float4 x = *reinterpret_cast<const float4*>(params.x + static_cast<int64_t>(m) * params.in_width + k);
      sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
    }
    sum = SumOfWarp(sum);
    if (threadIdx.x % 32 == 0) sums[m][threadIdx.x / 32] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    float sum = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) sum += sums[m][warp];
    factors[m] = 1.0f / sqrtf(sum / static_cast<float>(params.in_width) + params.epsilon);
  }
}

// The outputs [first, first + kCount) of a job, or of a gated product half as many gates and as many ups.
template <int kCount, bool kIsGated>
struct Tile {
  static constexpr int kWidth = kIsGated ? kCount / 2 : kCount;
  const MatrixJob* job;
  int first;
  const uint16_t* rows[kCount];

  // False: there are fewer than `index`. Past the end, rows of the last outputs.
  __device__ __forceinline__ bool Find(const VectorProductParams& params, int index) {
    const int num_jobs = kIsGated ? 1 : params.num_jobs;
    for (int j = 0; j < num_jobs; ++j) {
      const int tiles = (params.jobs[j].out_width + kWidth - 1) / kWidth;
      if (index >= tiles) {
        index -= tiles;
        continue;
      }
      job = &params.jobs[j];
      first = index * kWidth;
#pragma unroll
      for (int o = 0; o < kCount; ++o) {
        const uint16_t* matrix = kIsGated ? params.jobs[o / kWidth].matrix : job->matrix;
        rows[o] = matrix + static_cast<int64_t>(min(first + o % kWidth, job->out_width - 1)) * params.in_width;
      }
      return true;
    }
    return false;
  }
};

template <int kRows, bool kIsGated, bool kHasNorm>
__global__ void __launch_bounds__(Tuning<kRows>::kThreads, Tuning<kRows>::kCtas)
    VectorProductKernel(const __grid_constant__ VectorProductParams params) {
  constexpr int kCount = Tuning<kRows>::kOutputs, kUnroll = Tuning<kRows>::kUnroll;
  LaunchDependents();
  const int lane = threadIdx.x % 32, num_warps = static_cast<int>(gridDim.x) * Tuning<kRows>::kWarps, in_width = params.in_width;
  int index = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  Tile<kCount, kIsGated> tile;
  uint4 words[kUnroll][kCount];
  bool is_tile = tile.Find(params, index);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (is_tile) LoadWords<kCount>(tile.rows, u * kStep + 8 * lane, in_width, words[u]);
  }
  WaitForPredecessors();
  float factors[kRows];
  if (kHasNorm) NormFactors<kRows>(params, factors);
  while (is_tile) {
    float sums[kCount][kRows] = {};
    for (int start = 0; start < in_width; start += kUnroll * kStep) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        // Behind the end the words are zeros.
        const int k = min(start + u * kStep + 8 * lane, in_width - 8);
        float gain[8];
        if (kHasNorm) Load8(params.gain + k, gain);
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          float x[8];
          Load8(params.x + static_cast<int64_t>(m) * in_width + k, x);
#pragma unroll
          for (int i = 0; i < 8 && kHasNorm; ++i) x[i] *= gain[i];
#pragma unroll
          for (int o = 0; o < kCount; ++o) AddProducts(words[u][o], x, sums[o][m]);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) LoadWords<kCount>(tile.rows, start + (kUnroll + u) * kStep + 8 * lane, in_width, words[u]);
    }
    // Lane o * kRows + m gets output o of row m.
    float mine = 0.0f, up = 0.0f;
#pragma unroll
    for (int o = 0; o < kCount; ++o) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const float sum = SumOfWarp(sums[o][m]) * (kHasNorm ? factors[m] : 1.0f);
        if (lane == o % tile.kWidth * kRows + m) (o < tile.kWidth ? mine : up) = sum;
      }
    }
    const int o = lane / kRows, m = lane % kRows;
    const MatrixJob& job = *tile.job;
    if (o < tile.kWidth && tile.first + o < job.out_width) {
      const int64_t at = static_cast<int64_t>(m) * job.out_width + tile.first + o;
      if (kIsGated) {
        mine = mine / (1.0f + expf(-mine)) * up;
      } else {
        if (job.bias != nullptr) mine += job.bias[tile.first + o];
        if (job.residual != nullptr) mine += job.residual[at];
      }
      job.out[at] = mine;
    }
    index += num_warps;
    is_tile = tile.Find(params, index);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (is_tile) LoadWords<kCount>(tile.rows, u * kStep + 8 * lane, in_width, words[u]);
    }
  }
}

bool IsValid(const VectorProductParams& params) {
  return params.num_rows >= 1 && params.num_rows <= kMostVectorRows && params.in_width % 8 == 0 &&
         params.num_jobs >= 1 && params.num_jobs <= kMostMatrixJobs;
}

unsigned NumMultiprocessors() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(std::max(count, 1));
}

template <bool kIsGated>
cudaError_t Launch(const VectorProductParams& params, cudaStream_t stream) {
  const auto launch = [&]<int kRows>() {
    const LaunchShape shape = {dim3(NumMultiprocessors() * Tuning<kRows>::kCtas), Tuning<kRows>::kThreads, stream};
    return params.gain != nullptr ? LaunchOverlapped(VectorProductKernel<kRows, kIsGated, true>, shape, params)
                                  : LaunchOverlapped(VectorProductKernel<kRows, kIsGated, false>, shape, params);
  };
  switch (params.num_rows) {
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
  return IsValid(params) ? Launch<false>(params, stream) : cudaErrorInvalidValue;
}

cudaError_t LaunchGatedVectorProduct(const VectorProductParams& params, cudaStream_t stream) {
  if (!IsValid(params) || params.num_jobs != 2 || params.jobs[0].out_width != params.jobs[1].out_width) return cudaErrorInvalidValue;
  return Launch<true>(params, stream);
}

}  // namespace oscar::engine
