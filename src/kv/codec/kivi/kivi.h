// KIVI (arXiv 2402.02750, baselines.md 6.4): 2-bit K per channel over groups of consecutive tokens, 2-bit V per token over groups of
// channels; nothing is rotated.
//   kivi        K groups of a page (64 tokens), V groups of 32 channels: 2.75 bits
//   kivi_g32    K groups of 32 tokens, V groups of 32 channels: the original setting, 3 bits
//   kivi_g128   K groups of 128 tokens, V one group per head: "KIVI-KV2" of the OSCAR tables, 2.25 bits at 128 channels
// KIVI* is any of them with a sink (--sink 64).
#pragma once

#include <cstddef>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::kivi {

// For groups of 32, 64 and 128 tokens.
template <int kGroupTokens>
std::size_t PageBytes(int head_dim);
template <int kGroupTokens>
const kernels::RowCodec& Codec();
// kUnsupported unless the head dimension is a multiple of 32.
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape);

}  // namespace oscar::kivi
