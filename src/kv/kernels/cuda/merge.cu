#include <cuda_bf16.h>

#include "src/kv/kernels/cuda/cache_kernels.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kWarps = 4;

// One warp per row; a lane has the dimensions lane, lane + 32, ...
template <int D>
__global__ void __launch_bounds__(32 * kWarps) MergeKernel(const MergeParams params) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32,
            lane = threadIdx.x % 32;
  if (row >= params.num_rows) return;
  float top = -__builtin_huge_valf();
  for (int part = 0; part < params.num_parts; ++part) {
    top = fmaxf(top, params.lses[static_cast<size_t>(part) * params.num_rows + row]);
  }
  float sum[D / 32] = {}, total = 0.0f;
  for (int part = 0; part < params.num_parts; ++part) {
    const size_t index = static_cast<size_t>(part) * params.num_rows + row;
    const float lse = params.lses[index];
    if (lse == -__builtin_huge_valf()) continue;  // the whole warp
    const float weight = expf(lse - top);
    total += weight;
#pragma unroll
    for (int i = 0; i < D / 32; ++i)
      sum[i] = fmaf(weight, params.outputs[index * D + 32 * i + lane], sum[i]);
  }
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const float result = total == 0.0f ? 0.0f : sum[i] / total;
    const size_t index = static_cast<size_t>(row) * D + 32 * i + lane;
    if (params.out != nullptr)
      params.out[index] = __bfloat16_as_ushort(__float2bfloat16_rn(result));
    if (params.out_f32 != nullptr) params.out_f32[index] = result;
  }
  if (params.out_lse != nullptr && lane == 0)
    params.out_lse[row] = total == 0.0f ? top : top + logf(total);
}

}  // namespace

cudaError_t LaunchMerge(const MergeParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  const int grid = (params.num_rows + kWarps - 1) / kWarps;
  switch (params.head_dim) {
    case 64:
      MergeKernel<64><<<grid, 32 * kWarps, 0, stream>>>(params);
      break;
    case 128:
      MergeKernel<128><<<grid, 32 * kWarps, 0, stream>>>(params);
      break;
    case 192:
      MergeKernel<192><<<grid, 32 * kWarps, 0, stream>>>(params);
      break;
    case 256:
      MergeKernel<256><<<grid, 32 * kWarps, 0, stream>>>(params);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace oscar::kernels::cuda
