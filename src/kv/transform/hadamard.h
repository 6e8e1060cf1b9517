// The normalised Hadamard matrix in Sylvester (natural) order: H[i][j] = (-1)^popcount(i & j) / sqrt(d), symmetric and its
// own inverse (method.md 2.4, baselines.md 1). Here as a fast transform of one row; the matrix itself is KvTransform::Hadamard.
#pragma once

#include <span>

namespace oscar::transform {

constexpr bool IsPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

// 1 / sqrt(order), rounded once.
float HadamardFactor(int order);

// row <- row H, in place: the factor 1/sqrt(d) first (unscaled butterflies can overflow), then butterflies of distance 1, 2,
// 4, ... in f32. The vectorised form makes the same operations in the same order, so its bits are the same.
// Precondition: row.size() is a power of two.
void ApplyHadamard(std::span<float> row);

}  // namespace oscar::transform
