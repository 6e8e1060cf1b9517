// Instances of the decode kernels for head_dim 128.
#include "src/kv/codec/affine/cuda_decode.h"
#include "src/kv/codec/affine/sm90/decode_attention.cuh"

namespace oscar::affine {
namespace {

using sm90::DecodeAttentionKernel;
using sm90::DecodeConfig;
using sm90::DecodeVariant;

template <class Config, DecodeVariant kVariant>
DecodeKernel Row(DecodeKernelKind kind) {
  return {Config::kHeadDim,
          Config::kHeadTile,
          kind,
          reinterpret_cast<const void*>(&DecodeAttentionKernel<Config, kVariant>),
          Config::kThreads,
          sizeof(typename Config::Shared)};
}

}  // namespace

std::span<const DecodeKernel> DecodeKernelsD128() {
  using Four = DecodeConfig<128, 4>;
  using Eight = DecodeConfig<128, 8>;
  static const DecodeKernel kernels[] = {
      Row<Four, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      Row<Eight, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      Row<Four, DecodeVariant::kLoadOnly>(DecodeKernelKind::kLoadOnly),
      Row<Eight, DecodeVariant::kLoadOnly>(DecodeKernelKind::kLoadOnly),
      Row<Four, DecodeVariant::kComputeOnly>(DecodeKernelKind::kComputeOnly),
      Row<Eight, DecodeVariant::kComputeOnly>(DecodeKernelKind::kComputeOnly),
  };
  return kernels;
}

}  // namespace oscar::affine
