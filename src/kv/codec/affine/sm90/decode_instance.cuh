// The table row of one decode kernel instance: what the cuda_dN.cu files list.
#pragma once

#include "src/kv/codec/affine/cuda_decode.h"
#include "src/kv/codec/affine/sm90/decode_attention.cuh"

namespace oscar::affine::sm90 {

template <class Config, DecodeVariant kVariant>
DecodeKernel DecodeInstance(DecodeKernelKind kind) {
  return {Config::kHeadDim,
          Config::kGroupHeads,
          kind,
          reinterpret_cast<const void*>(&DecodeAttentionKernel<Config, kVariant>),
          Config::kThreads,
          sizeof(typename Config::Shared)};
}

}  // namespace oscar::affine::sm90
