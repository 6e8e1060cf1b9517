// Instances of the decode kernels for 9 to 16 query heads per KV head.
#include "src/kv/codec/affine/sm90/decode_instance.cuh"

namespace oscar::affine {

std::span<const DecodeKernel> DecodeKernelsOf16Heads() {
  using sm90::DecodeConfig, sm90::DecodeInstance, sm90::DecodeVariant;
  static const DecodeKernel kernels[] = {
      DecodeInstance<DecodeConfig<64, 16>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      DecodeInstance<DecodeConfig<128, 16>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      DecodeInstance<DecodeConfig<192, 16>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      DecodeInstance<DecodeConfig<256, 16>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
  };
  return kernels;
}

}  // namespace oscar::affine
