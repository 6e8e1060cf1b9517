// Limits on the shapes that a profile may have. They bound what a hostile file can make us allocate and keep every
// product of counts inside 64 bits.
#pragma once

#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

inline constexpr int kMaxProfileLayers = 4096;
inline constexpr int kMaxProfileHeads = 4096;
inline constexpr int kMaxProfileHeadDim = 1024;

// kInvalidArgument naming the shape unless all counts are within the limits and query heads are a multiple of KV heads.
Status CheckProfileShape(const KvShape& shape);

}  // namespace oscar
