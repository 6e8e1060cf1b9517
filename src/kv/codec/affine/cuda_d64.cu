// Instances of the decode kernels for head_dim 64.
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

std::span<const DecodeKernel> DecodeKernelsD64() {
  using Four = DecodeConfig<64, 4>;
  using Eight = DecodeConfig<64, 8>;
  static const DecodeKernel kernels[] = {
      Row<Four, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      Row<Eight, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
  };
  return kernels;
}

}  // namespace oscar::affine
