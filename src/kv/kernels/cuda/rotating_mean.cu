#include "src/kv/kernels/cuda/cache_kernels.h"
#include "src/kv/kernels/cuda/ptx/launch.cuh"

namespace oscar::kernels::cuda {
namespace {

constexpr int kThreads = 128, kMostPairs = 128;

// One CTA per 128 pages of a (sequence, KV head). The products of queries and mean are made once;
// then a thread has a page and turns them, for all heads of the group at once.
template <int kHeads>
__global__ void __launch_bounds__(kThreads) RotatingMeanKernel(const RotatingMeanParams params) {
  __shared__ float2 factors[kMostPairs][kHeads];  // of cos and of sin
  ptx::WaitForPredecessors();
  ptx::LaunchDependents();
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const uint16_t* queries =
      params.queries +
      (static_cast<int64_t>(sequence) * params.kv_heads + head) * params.group * params.head_dim;
  for (int i = threadIdx.x; i < params.num_pairs * kHeads; i += kThreads) {
    const RotatingPair pair = params.pairs[head * params.num_pairs + i / kHeads];
    float2 factor = make_float2(0.0f, 0.0f);
    if (i % kHeads < params.group) {
      const uint16_t* query = queries + i % kHeads * params.head_dim;
      const float x = __uint_as_float(static_cast<uint32_t>(query[pair.x]) << 16);
      const float y =
          pair.x == pair.y ? 0.0f : __uint_as_float(static_cast<uint32_t>(query[pair.y]) << 16);
      factor.x = params.kappa * (x * pair.real + y * pair.imaginary);
      factor.y = params.kappa * (y * pair.real - x * pair.imaginary);
    }
    factors[i / kHeads][i % kHeads] = factor;
  }
  __syncthreads();
  const int page = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (page >= params.num_pages) return;
  const int64_t turn_stride = params.turn_stride > 0 ? params.turn_stride : params.num_pages;
  float sum[kHeads] = {};
  for (int pair = 0; pair < params.num_pairs; ++pair) {
    const float2 turn = __ldg(params.turns + pair * turn_stride + page);
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      sum[h] = fmaf(factors[pair][h].x, turn.x, fmaf(factors[pair][h].y, turn.y, sum[h]));
  }
  float* out =
      params.page_beta +
      ((static_cast<int64_t>(sequence) * params.kv_heads + head) * params.num_pages + page) *
          kHeads;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) out[h] = sum[h];
}

}  // namespace

cudaError_t LaunchRotatingMean(const RotatingMeanParams& params, int num_sequences,
                               cudaStream_t stream) {
  if (params.num_pairs < 1 || params.num_pairs > kMostPairs || params.group > params.head_tile)
    return cudaErrorInvalidValue;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3((params.num_pages + kThreads - 1) / kThreads, params.kv_heads, num_sequences);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  switch (params.head_tile) {
    case 4:
      return cudaLaunchKernelEx(&config, RotatingMeanKernel<4>, params);
    case 8:
      return cudaLaunchKernelEx(&config, RotatingMeanKernel<8>, params);
    case 16:
      return cudaLaunchKernelEx(&config, RotatingMeanKernel<16>, params);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::kernels::cuda
