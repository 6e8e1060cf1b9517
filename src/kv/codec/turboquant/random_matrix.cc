#include "src/kv/codec/turboquant/random_matrix.h"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <random>

namespace oscar::turboquant {

std::vector<double> NormalMatrix(int d, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto uniform = [&] { return (static_cast<double>(rng() >> 11) + 0.5) * 0x1p-53; };  // (0, 1)
  std::vector<double> matrix(static_cast<std::size_t>(d) * static_cast<std::size_t>(d));
  for (double& value : matrix) {  // Box-Muller; std::normal_distribution differs between libraries
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = radius * std::cos(2 * std::numbers::pi * uniform());
  }
  return matrix;
}

// Gram-Schmidt, twice for orthogonality to the last digit. It leaves diag(R) positive, which makes the distribution uniform.
std::vector<float> OrthogonalMatrix(int d, uint64_t seed) {
  const auto n = static_cast<std::size_t>(d);
  std::vector<double> rows = NormalMatrix(d, seed);
  for (std::size_t i = 0; i < n; ++i) {
    double* row = rows.data() + i * n;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t k = 0; k < i; ++k) {
        const double* other = rows.data() + k * n;
        double product = 0;
        for (std::size_t c = 0; c < n; ++c) product += row[c] * other[c];
        for (std::size_t c = 0; c < n; ++c) row[c] -= product * other[c];
      }
    }
    double power = 0;
    for (std::size_t c = 0; c < n; ++c) power += row[c] * row[c];
    for (std::size_t c = 0; c < n; ++c) row[c] /= std::sqrt(power);
  }
  return {rows.begin(), rows.end()};
}

}  // namespace oscar::turboquant
