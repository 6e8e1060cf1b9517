// The random matrices of TurboQuant, from fixed seeds: the same in every process, so that stored bytes stay readable.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::turboquant {

// [d, d] independent N(0, 1) numbers.
std::vector<double> NormalMatrix(int d, uint64_t seed);
// [d, d], uniformly distributed over the orthogonal matrices: QR of a normal matrix, columns with the signs of diag(R).
std::vector<float> OrthogonalMatrix(int d, uint64_t seed);

}  // namespace oscar::turboquant
