// Named error bounds and distances for tests. A bound that appears in a test has its name and reason here.
#pragma once

#include <cmath>
#include <span>

namespace oscar::testing {

inline constexpr double kCpuAttentionRelativeL2 = 1e-5;  // fp32 attention against float64 on the same bytes (method.md 6.3)
// Attention over codes with queries and weights of 16 bits; at most 1.6e-4 was seen (affine/README.md, error budget).
inline constexpr double kCpuWholeNumberAttentionRelativeL2 = 5e-4;

// |a - b|_2 / |b|_2; NaN when any value is not finite, so that a comparison with a bound fails.
template <class A, class B>
double RelativeL2(std::span<A> actual, std::span<B> expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    error += difference * difference;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  if (actual.size() != expected.size()) return std::nan("");
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

}  // namespace oscar::testing
