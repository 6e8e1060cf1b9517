// The prefill kernels of 1-bit codes.
#include "src/kv/codec/affine/prefill_instance.cuh"

namespace oscar::affine {

template cudaError_t PreparePrefillOf<1>();
template cudaError_t LaunchPrefillOf<1>(int head_dim, const kernels::cuda::PrefillParams& params, cudaStream_t stream);

}  // namespace oscar::affine
