// `saw_int4` (arXiv 2604.19157, baselines.md 6.1): K times a block-diagonal Hadamard matrix, then the affine row with 4-bit codes;
// V is not rotated. Methods name the order of the blocks.
#pragma once

#include <cstddef>
#include <string_view>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::saw_int4 {

inline constexpr std::string_view kMethodNames[] = {"h16", "h64", "h128"};

std::size_t PageBytes(int head_dim);
const kernels::RowCodec& Codec();
// kUnsupported unless the order divides the head dimension.
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape);

}  // namespace oscar::saw_int4
