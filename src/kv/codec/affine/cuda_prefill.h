// Launch of the prefill attention kernel of the affine codec.
#pragma once

#include <cuda_runtime_api.h>

#include "src/kv/kernels/cuda/prefill_params.h"

namespace oscar::affine {

// Asks for the kernels' shared memory, once per process and device, before the first launch.
cudaError_t PreparePrefill(int bits = 2);

// One launch; its partial results are joined by LaunchMerge. cudaErrorInvalidValue for a head_dim
// or `bits` of a code without a kernel, sink or recent that are no multiples of 64, or no splits.
cudaError_t LaunchPrefill(int head_dim, const kernels::cuda::PrefillParams& params,
                          cudaStream_t stream, int bits = 2);

// The same for one number of bits: 1, 2 and 4 are instantiated.
template <int kBits>
cudaError_t PreparePrefillOf();
template <int kBits>
cudaError_t LaunchPrefillOf(int head_dim, const kernels::cuda::PrefillParams& params,
                            cudaStream_t stream);

}  // namespace oscar::affine
