// The prefill kernels of 4-bit codes.
#include "src/kv/codec/affine/prefill_instance.cuh"

namespace oscar::affine {

template cudaError_t PreparePrefillOf<4>();
template cudaError_t LaunchPrefillOf<4>(int head_dim, const kernels::cuda::PrefillParams& params, cudaStream_t stream);

}  // namespace oscar::affine
