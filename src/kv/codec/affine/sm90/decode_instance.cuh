// The table row of one decode kernel instance: what the cuda_dN.cu files list.
#pragma once

#include "src/kv/codec/affine/cuda_decode.h"
#include "src/kv/codec/affine/sm90/decode_attention.cuh"

namespace oscar::affine::sm90 {

template <class Config, DecodeVariant kVariant>
DecodeKernel DecodeInstance(DecodeKernelKind kind) {
  return {Config::kHeadDim,
          Config::kGroupHeads,
          Config::kBits,
          kind,
          reinterpret_cast<const void*>(&DecodeAttentionKernel<Config, kVariant>),
          Config::kThreads,
          sizeof(typename Config::Shared)};
}

}  // namespace oscar::affine::sm90

namespace oscar::affine {

// Large head dimensions do without a kernel of their own for groups up to 4: compile time.
template <int kBits, int D>
std::span<const DecodeKernel> DecodeKernelsOf() {
  using sm90::DecodeConfig, sm90::DecodeInstance, sm90::DecodeVariant;
  static const DecodeKernel kernels[] = {
      DecodeInstance<DecodeConfig<D, 16, kBits>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      DecodeInstance<DecodeConfig<D, 8, kBits>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
      DecodeInstance<DecodeConfig<D, D <= 128 ? 4 : 8, kBits>, DecodeVariant::kNormal>(DecodeKernelKind::kNormal),
  };
  return kernels;
}

}  // namespace oscar::affine
