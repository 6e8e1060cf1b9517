#include "src/kv/profile/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/kv/transform/hadamard.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"

namespace oscar::profile {
namespace {

// e G e^T = sum_i C_ii^2 (e N)_i^2 with C_ii^2 from G alone (quality.md 5).
TEST(ErrorFeedback, TheMetricAndItsFactorMeasureTheSameError) {
  std::mt19937_64 rng(testing::TestSeed(31));
  for (const int d : {64, 80, 96, 112, 128, 192, 256}) {
    const auto n = static_cast<size_t>(d);
    const std::vector<float> metric = testing::RandomMetric(rng, d);
    const ErrorFeedback made = DeriveErrorFeedback(d, metric);
    const std::vector<double> q = transform::MixingMatrix(d);
    double mean_weight = 0, mean_diagonal = 0;
    for (const float weight : metric) mean_weight += double{weight} / d;
    for (size_t i = 0; i < n; ++i) {
      mean_diagonal += double{made.metric[i * n + i]} / d;
      EXPECT_NEAR(made.inverse_diagonal[i] * made.metric[i * n + i], 1, 1e-5);
      for (size_t j = 0; j <= i; ++j) ASSERT_EQ(made.feedback[i * n + j], 0.0f);
    }
    EXPECT_NEAR(mean_diagonal, 1, 1e-5);
    // C_ii^2 by the ratio of leading minors is what elimination leaves on the diagonal.
    std::vector<double> rest(made.metric.begin(), made.metric.end()), pivots(n);
    for (size_t k = 0; k < n; ++k) {
      pivots[k] = rest[k * n + k];
      for (size_t i = k + 1; i < n; ++i) {
        for (size_t j = k + 1; j < n; ++j) rest[i * n + j] -= rest[i * n + k] * rest[k * n + j] / pivots[k];
      }
    }
    for (int trial = 0; trial < 5; ++trial) {
      const std::vector<float> e = testing::NormalVector(rng, n);
      double weighted = 0, fed = 0, mixed = 0;
      for (size_t i = 0; i < n; ++i) {
        double inner = e[i], component = 0;
        for (size_t j = 0; j < n; ++j) {
          weighted += double{e[i]} * made.metric[i * n + j] * e[j];
          inner += double{e[j]} * made.feedback[i * n + j];
          component += q[i * n + j] * e[j];
        }
        fed += pivots[i] * inner * inner;
        mixed += metric[i] / mean_weight * component * component;  // e Q^T diag(w) Q e^T
      }
      EXPECT_NEAR(fed / weighted, 1, 1e-4) << "d " << d;
      EXPECT_NEAR(mixed / weighted, 1, 1e-4) << "d " << d;
    }
  }
}

}  // namespace
}  // namespace oscar::profile
