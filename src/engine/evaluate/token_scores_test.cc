#include "src/engine/evaluate/token_scores.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

TEST(TokenScores, NegativeLogLikelihoodOfUniformLogitsIsLogOfTheirNumber) {
  const std::vector<float> logits(1000, 3.0f);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 17), std::log(1000.0), 1e-12);
}

TEST(TokenScores, KlMatchesTheDefinitionOnTwoTokens) {
  const double p = 0.7, q = 0.4;
  const std::vector<float> exact{static_cast<float>(std::log(p / (1 - p))), 0.0f};
  const std::vector<float> other{static_cast<float>(std::log(q / (1 - q))), 0.0f};
  const double expected = p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q));
  EXPECT_NEAR(KlDivergence(exact, other), expected, 1e-6);
  EXPECT_NEAR(KlDivergence(exact, exact), 0, 1e-15);
}

TEST(TokenScores, KlDoesNotChangeWhenAConstantIsAddedToTheLogits) {
  const std::vector<float> exact{0.5f, -1.25f, 2.0f, 100.0f}, other{0.25f, 1.0f, 3.0f, 99.0f};
  std::vector<float> shifted = other;
  for (float& value : shifted) value += 64.0f;
  EXPECT_NEAR(KlDivergence(exact, other), KlDivergence(exact, shifted), 1e-12);
}

TEST(TokenScores, KlOfLogitsFarApartStaysFinite) {
  EXPECT_NEAR(KlDivergence(std::vector<float>{300.0f, 0.0f}, std::vector<float>{0.0f, 300.0f}), 300.0, 1e-9);
}

TEST(TokenScores, ArgMaxTakesTheLowerIndexOnATie) {
  EXPECT_EQ(ArgMax(std::vector<float>{1.0f, 4.0f, 4.0f}), 1);
}

TEST(TokenScores, SummaryUsesNearestRanks) {
  std::vector<double> values(200);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(200 - i);
  const Summary summary = Summarize(values);
  EXPECT_DOUBLE_EQ(summary.mean, 100.5);
  EXPECT_DOUBLE_EQ(summary.median, 100.5);
  EXPECT_DOUBLE_EQ(summary.p99, 198);
  EXPECT_DOUBLE_EQ(summary.max, 200);
  EXPECT_DOUBLE_EQ(Summarize({7}).p99, 7);
}

}  // namespace
}  // namespace oscar::engine
