#include "src/kv/codec/affine/cuda_demote.h"

#include "src/kv/codec/affine/demote.cuh"

namespace oscar::affine {
namespace {

template <int D>
void Launch(const dim3& grid, const DemotePagesParams& params, cudaStream_t stream) {
  if (params.sides[0].matrix != nullptr) {
    DemotePagesKernel<D, true><<<grid, kDemoteThreads<D, true>, 0, stream>>>(params);
  } else {
    DemotePagesKernel<D, false><<<grid, kDemoteThreads<D, false>, 0, stream>>>(params);
  }
}

}  // namespace

cudaError_t LaunchDemote(int head_dim, const DemotePagesParams& params, int num_jobs,
                         int num_layers, cudaStream_t stream) {
  if (num_jobs == 0 || num_layers == 0) return cudaSuccess;
  if ((params.sides[0].matrix == nullptr) != (params.sides[1].matrix == nullptr))
    return cudaErrorInvalidValue;
  const dim3 grid(2 * num_jobs, params.kv_heads, num_layers);
  switch (head_dim) {
    case 64:
      Launch<64>(grid, params, stream);
      break;
    case 128:
      Launch<128>(grid, params, stream);
      break;
    case 192:
      Launch<192>(grid, params, stream);
      break;
    case 256:
      Launch<256>(grid, params, stream);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace oscar::affine
