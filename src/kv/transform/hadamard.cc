#include "src/kv/transform/hadamard.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "src/base/check.h"

namespace oscar::transform {

float HadamardFactor(int order) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(order))); }

void ApplyHadamard(std::span<float> row) {
  const size_t order = row.size();
  OSCAR_CHECK(IsPowerOfTwo(static_cast<int>(order)));
  const float factor = HadamardFactor(static_cast<int>(order));
  for (float& value : row) value *= factor;
  for (size_t half = 1; half < order; half *= 2) {
    for (size_t start = 0; start < order; start += 2 * half) {
      for (size_t i = start; i < start + half; ++i) {
        const float low = row[i], high = row[i + half];
        row[i] = low + high;
        row[i + half] = low - high;
      }
    }
  }
}

namespace {

int LargestPowerOfTwoIn(int d) { return d & -d; }

}  // namespace

std::vector<double> MixingMatrix(int d) {
  OSCAR_CHECK(d > 0);
  const auto size = static_cast<size_t>(d), n = static_cast<size_t>(LargestPowerOfTwoIn(d)), m = size / n;
  const double unit = 1.0 / std::sqrt(static_cast<double>(n));
  std::vector<double> cosines(m * m);
  for (size_t k = 0; k < m; ++k) {
    const double factor = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(m));
    for (size_t l = 0; l < m; ++l) {
      const double turn = static_cast<double>((2 * l + 1) * k) / static_cast<double>(2 * m);
      cosines[k * m + l] = factor * std::cos(std::numbers::pi * turn);
    }
  }
  std::vector<double> mixing(size * size);
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      const double sign = std::popcount((i / m) & (j / m)) % 2 == 0 ? unit : -unit;
      mixing[i * size + j] = sign * cosines[i % m * m + j % m];
    }
  }
  return mixing;
}

std::string MixingName(int d) {
  const int n = LargestPowerOfTwoIn(d);
  return "hadamard" + std::to_string(n) + (n == d ? "" : "_dct" + std::to_string(d / n));
}

}  // namespace oscar::transform
