// RotateKV (arXiv 2501.16383, baselines.md 6.6) without its calibrated channel order: keys as they were before RoPE, of four KV
// heads together, times a Hadamard matrix over all four, then 2 bits per token in groups of 128 channels; values times a Hadamard
// matrix per head, one group per head. Range factor 0.8. Keys are turned by RoPE when they are read.
#pragma once

#include <cstddef>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::rotatekv {

inline constexpr int kHeadsTogether = 4;
inline constexpr float kRangeFactor = 0.8f;

std::size_t PageBytes(int head_dim);
const kernels::RowCodec& Codec();
// kUnsupported unless the KV heads are a multiple of 4, the head dimension is 64 or 128 and `rotary` has angles.
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape, const RotaryEmbedding& rotary);
// What the codec can encode: no clip, no other encoder, keys with the zero mean that carries the rotary embedding.
Status CheckRow(const RowProfile& row);

}  // namespace oscar::rotatekv
