#include "src/kv/transform/turning_mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/kv/transform/hadamard.h"
#include "src/testing/seeds.h"

namespace oscar::transform {
namespace {

RotaryEmbedding Rotary(int pairs, bool halves) {
  RotaryEmbedding rotary{{}, halves};
  for (int j = 0; j < pairs; ++j) rotary.angles.push_back(static_cast<float>(std::pow(10000.0, -1.0 * j / pairs)));
  return rotary;
}

// m turned to position t, pair by pair, as RoPE turns a key.
std::vector<double> TurnedTo(const RotaryEmbedding& rotary, const std::vector<float>& m, int t) {
  std::vector<double> turned(m.begin(), m.end());
  const size_t pairs = rotary.angles.size();
  for (size_t j = 0; j < pairs; ++j) {
    const size_t a = rotary.halves ? j : 2 * j, b = rotary.halves ? j + pairs : 2 * j + 1;
    const double angle = t * double{rotary.angles[j]};
    turned[a] = m[a] * std::cos(angle) - m[b] * std::sin(angle);
    turned[b] = m[a] * std::sin(angle) + m[b] * std::cos(angle);
  }
  return turned;
}

TEST(TurningMean, OfAPageIsTheAverageOverItsPositions) {
  std::mt19937_64 rng(testing::TestSeed(11));
  for (const bool halves : {false, true}) {
    for (const auto& [d, pairs] : {std::pair{64, 32}, std::pair{128, 48}, std::pair{80, 40}, std::pair{96, 0}}) {
      const RotaryEmbedding rotary = Rotary(pairs, halves);
      const std::vector<float> m = testing::NormalVector(rng, static_cast<size_t>(d));
      const std::vector<float> first = MeanOfPageZero(rotary, m);
      for (const int page : {0, 1, 2, 17, 500, 2047}) {
        std::vector<double> expected(m.size(), 0.0);
        for (int r = 0; r < 64; ++r) {
          const std::vector<double> turned = TurnedTo(rotary, m, 64 * page + r);
          for (size_t c = 0; c < m.size(); ++c) expected[c] += turned[c] / 64;
        }
        std::vector<float> phases(m.size()), mean(m.size());
        FillPagePhases(rotary, page, phases);
        TurnMean(rotary, first, phases, mean);
        for (size_t c = 0; c < m.size(); ++c) {
          ASSERT_NEAR(mean[c], expected[c], 2e-6) << "halves " << halves << " d " << d << " page " << page << " channel " << c;
        }
      }
    }
  }
}

TEST(TurningMean, TermsGiveTheScoreOfTheMean) {
  std::mt19937_64 rng(testing::TestSeed(12));
  for (const bool halves : {false, true}) {
    const RotaryEmbedding rotary = Rotary(24, halves);
    const std::vector<float> m = testing::NormalVector(rng, 64), q = testing::NormalVector(rng, 64);
    const std::vector<float> first = MeanOfPageZero(rotary, m);
    std::vector<float> terms(64), phases(64), mean(64);
    MeanTerms(rotary, first, q.data(), 0.5f, terms.data());
    for (const int page : {0, 3, 999}) {
      FillPagePhases(rotary, page, phases);
      TurnMean(rotary, first, phases, mean);
      double expected = 0, actual = 0;
      for (size_t c = 0; c < 64; ++c) {
        expected += 0.5 * double{q[c]} * mean[c];
        actual += double{terms[c]} * phases[c];
      }
      EXPECT_NEAR(actual, expected, 1e-5);
    }
  }
}

TEST(MixingMatrix, IsOrthogonalForEveryHeadDimensionAndTheHadamardMatrixForPowersOfTwo) {
  for (const int d : {1, 2, 64, 80, 96, 112, 128, 192, 256}) {
    const auto n = static_cast<size_t>(d);
    const std::vector<double> q = MixingMatrix(d);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (size_t k = 0; k < n; ++k) sum += q[i * n + k] * q[j * n + k];
        ASSERT_NEAR(sum, i == j ? 1 : 0, 1e-12) << "d " << d;
      }
    }
    if (!IsPowerOfTwo(d)) continue;
    const auto hadamard = KvTransform::Hadamard(d);
    for (size_t i = 0; i < n * n; ++i) ASSERT_EQ(static_cast<float>(q[i]), hadamard->matrix()[i]);
  }
  EXPECT_EQ(MixingName(128), "hadamard128");
  EXPECT_EQ(MixingName(80), "hadamard16_dct5");
  EXPECT_EQ(MixingName(192), "hadamard64_dct3");
}

}  // namespace
}  // namespace oscar::transform
