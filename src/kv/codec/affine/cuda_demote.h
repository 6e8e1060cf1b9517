// Launch of the demotion kernel of the affine codec.
#pragma once

#include <cuda_runtime_api.h>

#include "src/kv/kernels/cuda/demote_params.h"

namespace oscar::affine {

// One launch for num_jobs pages of every layer. With overlap_start it may be set up while its
// predecessor in the stream still runs; it reads nothing before that has ended.
// cudaErrorInvalidValue for a head_dim, bits or a clip without a kernel, or a matrix on one side
// only.
cudaError_t LaunchDemote(int head_dim, const kernels::cuda::DemotePagesParams& params, int num_jobs,
                         int num_layers, bool overlap_start, cudaStream_t stream);

}  // namespace oscar::affine
