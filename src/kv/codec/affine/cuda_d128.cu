// Instances of the decode kernels for head_dim 128.
#include "src/kv/codec/affine/sm90/decode_instance.cuh"

namespace oscar::affine {

std::span<const DecodeKernel> DecodeKernelsD128() {
  using sm90::DecodeInstance, sm90::DecodeVariant;
  using Four = sm90::DecodeConfig<128, 4>;
  using Eight = sm90::DecodeConfig<128, 8>;
  static const DecodeKernel kernels[] = {
      DecodeInstance<Four, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      DecodeInstance<Eight, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
  };
  return kernels;
}

}  // namespace oscar::affine
