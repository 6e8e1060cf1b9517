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

// FeedbackTile<bits> of feedback-inl.h on 16 rows; the rows in the order given. kNonFinite naming the first row refused.
Result<std::vector<reference::AffineRow>> EncodeFeedbackOnTarget(const std::vector<std::vector<float>>& rows, int bits,
                                                                 const RowProfile& row);

// PackKeyTile<2> or PackValueTile<2>: codes [16, d] into `words` [4 d] of a page, at slots slot .. slot + 15.
void PackOnTarget(KvSide side, const std::vector<uint8_t>& codes, int slot, int d, std::vector<uint32_t>& words);

}  // namespace oscar::affine
