#include "src/kv/codec/affine/cuda_demote.h"

#include "src/kv/codec/affine/demote.cuh"
#include "src/kv/codec/affine/demote_four_bits.cuh"

namespace oscar::affine {
namespace {

template <int D>
cudaError_t Launch(const dim3& grid, const DemotePagesParams& params, bool overlap_start,
                   cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const bool transforms = params.sides[0].matrix != nullptr;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(transforms || params.bits == 4 ? kDemoteThreads<D, true> : kDemoteThreads<D, false>);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap_start ? 1 : 0;
  if (params.bits == 4) return cudaLaunchKernelEx(&config, four_bits::DemotePagesKernel<D>, params);
  return transforms ? cudaLaunchKernelEx(&config, DemotePagesKernel<D, true>, params)
                    : cudaLaunchKernelEx(&config, DemotePagesKernel<D, false>, params);
}

}  // namespace

cudaError_t LaunchDemote(int head_dim, const DemotePagesParams& params, int num_jobs,
                         int num_layers, bool overlap_start, cudaStream_t stream) {
  if (num_jobs == 0 || num_layers == 0) return cudaSuccess;
  if ((params.sides[0].matrix == nullptr) != (params.sides[1].matrix == nullptr))
    return cudaErrorInvalidValue;
  const bool has_clip = params.sides[0].clip_index >= 0 || params.sides[1].clip_index >= 0;
  if (params.bits != 2 && (params.bits != 4 || has_clip)) return cudaErrorInvalidValue;
  const dim3 grid(2 * num_jobs, params.kv_heads, num_layers);
  switch (head_dim) {
    case 64:
      return Launch<64>(grid, params, overlap_start, stream);
    case 128:
      return Launch<128>(grid, params, overlap_start, stream);
    case 192:
      return Launch<192>(grid, params, overlap_start, stream);
    case 256:
      return Launch<256>(grid, params, overlap_start, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::affine
