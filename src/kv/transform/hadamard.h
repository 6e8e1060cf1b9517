// The normalised Hadamard matrix in Sylvester (natural) order: H[i][j] = (-1)^popcount(i & j) / sqrt(d), symmetric and its
// own inverse (method.md 2.4, baselines.md 1). Here as a fast transform of one row; the matrix itself is KvTransform::Hadamard.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace oscar::transform {

constexpr bool IsPowerOfTwo(int value) { return value > 0 && (value & (value - 1)) == 0; }

// 1 / sqrt(order), rounded once.
float HadamardFactor(int order);

// row <- row H, in place: the factor 1/sqrt(d) first (unscaled butterflies can overflow), then butterflies of distance 1, 2,
// 4, ... in f32. The vectorised form makes the same operations in the same order, so its bits are the same.
// Precondition: row.size() is a power of two.
void ApplyHadamard(std::span<float> row);

// The mixing matrix Q of int2:balanced for any order d (quality.md 2), [d, d] row-major, orthogonal: H_d where d is a power of
// two, otherwise the Kronecker product of H_n, n the largest power of two in d, and the orthonormal DCT-II of order m = d / n:
//   Q[i1 m + i2][j1 m + j2] = H_n[i1][j1] D[i2][j2],  D[k][l] = c_k cos(pi (2 l + 1) k / (2 m)),  c_0^2 = 1/m, else 2/m
std::vector<double> MixingMatrix(int d);
// "hadamard128", "hadamard16_dct5".
std::string MixingName(int d);

}  // namespace oscar::transform
