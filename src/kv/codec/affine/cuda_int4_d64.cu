// Instances of the decode kernels of 4-bit codes for head_dim 64.
#include "src/kv/codec/affine/sm90/decode_instance.cuh"

namespace oscar::affine {

template std::span<const DecodeKernel> DecodeKernelsOf<4, 64>();

}  // namespace oscar::affine
