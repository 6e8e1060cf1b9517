// Kitty (arXiv 2511.18643, baselines.md 6.5): KIVI's layout over 128 tokens, with 4-bit codes in the K channels of largest mean
// magnitude; V is the affine row of 2 bits.
//   kitty      12.5 % of the channels boosted
//   kitty_pro  25 %
#pragma once

#include <cstddef>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::kitty {

enum class Boost { kEighth, kQuarter };

// For both boosts.
template <Boost kBoost>
std::size_t PageBytes(int head_dim);
template <Boost kBoost>
const kernels::RowCodec& Codec();
// kUnsupported for more than 128 channels, which the method splits into groups of 128.
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape);

}  // namespace oscar::kitty
