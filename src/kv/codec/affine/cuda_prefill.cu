#include "src/kv/codec/affine/cuda_prefill.h"

namespace oscar::affine {

cudaError_t PreparePrefill(int bits) {
  switch (bits) {
    case 1:
      return PreparePrefillOf<1>();
    case 2:
      return PreparePrefillOf<2>();
    case 4:
      return PreparePrefillOf<4>();
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchPrefill(int head_dim, const kernels::cuda::PrefillParams& params,
                          cudaStream_t stream, int bits) {
  switch (bits) {
    case 1:
      return LaunchPrefillOf<1>(head_dim, params, stream);
    case 2:
      return LaunchPrefillOf<2>(head_dim, params, stream);
    case 4:
      return LaunchPrefillOf<4>(head_dim, params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::affine
