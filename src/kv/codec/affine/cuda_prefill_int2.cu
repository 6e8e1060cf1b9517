// The prefill kernels of 2-bit codes.
#include "src/kv/codec/affine/prefill_instance.cuh"

namespace oscar::affine {

template cudaError_t PreparePrefillOf<2>();
template cudaError_t LaunchPrefillOf<2>(int head_dim, const kernels::cuda::PrefillParams& params, cudaStream_t stream);

}  // namespace oscar::affine
