#include "src/kv/codec/affine/cuda_demote.h"

#include "src/kv/codec/affine/demote.cuh"

namespace oscar::affine {

cudaError_t LaunchDemote(int head_dim, const kernels::cuda::DemotePagesParams& params, int num_jobs, int num_layers,
                         cudaStream_t stream) {
  if (num_jobs == 0 || num_layers == 0) return cudaSuccess;
  const dim3 grid(num_jobs, params.kv_heads, num_layers);
  switch (head_dim) {
    case 64:
      DemotePagesKernel<64><<<grid, kDemoteThreads, 0, stream>>>(params);
      break;
    case 128:
      DemotePagesKernel<128><<<grid, kDemoteThreads, 0, stream>>>(params);
      break;
    case 192:
      DemotePagesKernel<192><<<grid, kDemoteThreads, 0, stream>>>(params);
      break;
    case 256:
      DemotePagesKernel<256><<<grid, kDemoteThreads, 0, stream>>>(params);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace oscar::affine
