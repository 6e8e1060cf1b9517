// The rank clip of method.md 3.2: the ratio picks an order statistic of |y| over the whole row,
//   idx = min(floor(ratio d), d - 1);  thr = sort_ascending(|y|)[idx];  y <- min(max(y, -thr), thr)
// found by exact integer selection: the bit pattern of a float without its sign orders like its magnitude. The vectorised
// form is in encode-inl.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace oscar::affine {

// Index of the threshold among the ascending magnitudes. Profiles store the ratio as f32; the product is taken in double with
// the decimal of six digits that the user wrote, so that 0.9 of 80 is 72 and not 71. Precondition: 0 < ratio <= 1.
inline int ClipIndex(float ratio, int d) {
  const double decimal = std::round(static_cast<double>(ratio) * 1e6) / 1e6;
  return std::min(static_cast<int>(decimal * d), d - 1);
}

// The magnitude with exactly `index` values ordered before it, bit by bit from the top. Precondition: y finite.
inline float ClipThreshold(std::span<const float> y, int index) {
  uint32_t threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const uint32_t candidate = threshold | (1u << bit);
    int num_below = 0;
    for (float value : y) num_below += (std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu) < candidate ? 1 : 0;
    if (num_below <= index) threshold = candidate;
  }
  return std::bit_cast<float>(threshold);
}

}  // namespace oscar::affine
