// Limits on the shapes that a profile may have. They bound what a hostile file can make us allocate and keep every
// product of counts inside 64 bits.
#pragma once

#include <span>

#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

inline constexpr int kMaxProfileLayers = 4096;
inline constexpr int kMaxProfileHeads = 4096;
inline constexpr int kMaxProfileHeadDim = 1024;

// Whether values [d] or [heads * d] are finite, not negative, and ascend within each head.
bool AreEigenvalues(std::span<const float> values, int head_dim);

// kInvalidArgument naming the shape unless all counts are within the limits and query heads are a multiple of KV heads.
Status CheckProfileShape(const KvShape& shape);

}  // namespace oscar
