// Instances of the decode kernels of 1-bit codes for head_dim 192.
#include "src/kv/codec/affine/sm90/decode_instance.cuh"

namespace oscar::affine {

template std::span<const DecodeKernel> DecodeKernelsOf<1, 192>();

}  // namespace oscar::affine
