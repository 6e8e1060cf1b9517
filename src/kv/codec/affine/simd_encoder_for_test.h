// Test support: the vectorised row encoder by itself, on whatever SIMD target dispatch is pinned to.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/reference.h"
#include "oscar/result.h"

namespace oscar::affine {

// EncodeRow<2> of encode-inl.h. y.size() a multiple of 16. kNonFinite where it refuses the row.
Result<reference::AffineRow> EncodeOnTarget(std::vector<float> y, const RowProfile& row);

// PackKeyTile<2> or PackValueTile<2>: codes [16, d] into `words` [4 d] of a page, at slots slot .. slot + 15.
void PackOnTarget(KvSide side, const std::vector<uint8_t>& codes, int slot, int d, std::vector<uint32_t>& words);

}  // namespace oscar::affine
