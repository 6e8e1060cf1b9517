// Instances of the decode kernels that tell which limit holds: for `oscar bench attend`, head_dim 128.
#include "src/kv/codec/affine/sm90/decode_instance.cuh"

namespace oscar::affine {

std::span<const DecodeKernel> DecodeKernelsOfLimits() {
  using sm90::DecodeInstance, sm90::DecodeVariant;
  using Four = sm90::DecodeConfig<128, 4>;
  using Eight = sm90::DecodeConfig<128, 8>;
  static const DecodeKernel kernels[] = {
      DecodeInstance<Four, DecodeVariant::kLoadOnly>(DecodeKernelKind::kLoadOnly),
      DecodeInstance<Eight, DecodeVariant::kLoadOnly>(DecodeKernelKind::kLoadOnly),
      DecodeInstance<Four, DecodeVariant::kComputeOnly>(DecodeKernelKind::kComputeOnly),
      DecodeInstance<Eight, DecodeVariant::kComputeOnly>(DecodeKernelKind::kComputeOnly),
  };
  return kernels;
}

}  // namespace oscar::affine
