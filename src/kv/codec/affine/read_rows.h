// Encoded rows of the affine layout, one value at a time: for tools, not for attention (tile-inl.h).
#pragma once

#include <cstddef>

#include "oscar/types.h"

namespace oscar::affine {

// rows [64, d] f32 of one side of one (page, KV head), in code space: offset + scale * code. kBits: 1, 2 or 4.
template <int kBits>
void ReadRows(KvSide side, int head_dim, const std::byte* page, float* rows);

}  // namespace oscar::affine
