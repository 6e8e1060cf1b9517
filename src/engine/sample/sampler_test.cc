#include "src/engine/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "gtest/gtest.h"
#include "src/engine/sample/philox.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

Sampler MakeSampler(SamplingParams params, int vocab_size) {
  if (!params.seed) params.seed = 1234;
  auto sampler = Sampler::Create(params, vocab_size);
  EXPECT_TRUE(sampler.ok());
  return *std::move(sampler);
}

int32_t SampleAt(Sampler& sampler, const std::vector<float>& logits, int64_t position) {
  const auto token = sampler.Sample(logits, position);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? *token : -1;
}

// Share of each token over many positions.
std::vector<double> Frequencies(Sampler& sampler, const std::vector<float>& logits, int draws) {
  std::vector<double> share(logits.size());
  for (int i = 0; i < draws; ++i) share[SampleAt(sampler, logits, i)] += 1.0 / draws;
  return share;
}

TEST(Sampler, GreedyTakesTheLargestLogitAndTheLowerIdOnATie) {
  Sampler sampler = MakeSampler({.temperature = 0}, 4);
  EXPECT_EQ(SampleAt(sampler, {0.0f, 3.0f, 3.0f, -1.0f}, 0), 1);
}

TEST(Sampler, DrawsFollowTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits{0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    Sampler sampler = MakeSampler({.temperature = temperature}, 5);
    const int draws = 40000;
    const std::vector<double> share = Frequencies(sampler, logits, draws);
    double total = 0, chi_square = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = std::exp(logits[i] / temperature) / total;
      chi_square += draws * (share[i] - expected) * (share[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 18.5) << temperature;  // 4 degrees of freedom: 0.1 %
  }
}

TEST(Sampler, ADrawElsewhereIsToldAllThatASampleDoes) {
  Sampler sampler = MakeSampler({.temperature = 0.5f, .top_k = 7, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 1.5f, .presence_penalty = 0.25f,
                                 .frequency_penalty = 0.5f, .penalty_tokens = 4, .logit_bias = {{3, 2.0f}, {9, -1.0f}}}, 12);
  for (const int32_t token : {1, 2}) sampler.Accept(token, /*is_prompt=*/true);
  for (const int32_t token : {3, 4, 4}) sampler.Accept(token, /*is_prompt=*/false);
  for (int round = 0; round < 2; ++round) {  // the second: what the first one counted is gone
    const TokenDraw draw = sampler.DrawAt(17);
    EXPECT_EQ(std::tuple(draw.temperature, draw.top_k, draw.top_p, draw.min_p, draw.uniform), std::tuple(0.5f, 7, 0.9f, 0.1f, UniformAt(1234, 0, 17)));
    std::map<int32_t, std::tuple<float, float, float>> changes;
    for (const LogitChange& change : draw.changes) changes[change.token] = {change.bias, change.penalty, change.repetition};
    const std::map<int32_t, std::tuple<float, float, float>> expected = {
        {2, {0, 0, 1.5f}}, {3, {2, 0.75f, 1.5f}}, {4, {0, 1.25f, 1.5f}}, {9, {-1, 0, 1}}};  // token 1 is behind the last four
    EXPECT_EQ(changes, expected);
    EXPECT_EQ(draw.changes.size(), expected.size());
  }
  EXPECT_TRUE(MakeSampler({.temperature = 0}, 4).DrawAt(0).is_plain_greedy());
}

TEST(Sampler, TopKLeavesTheKMostLikely) {
  Sampler sampler = MakeSampler({.temperature = 5, .top_k = 2}, 5);
  const std::vector<double> share = Frequencies(sampler, {0.0f, 1.0f, 2.0f, -1.0f, 0.5f}, 2000);
  EXPECT_GT(share[1], 0);
  EXPECT_GT(share[2], 0);
  EXPECT_DOUBLE_EQ(share[0] + share[3] + share[4], 0);
  Sampler all = MakeSampler({.top_k = 1000}, 5);  // more than there are
  EXPECT_GT(Frequencies(all, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, 2000)[4], 0.1);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.3, 0.2.
  const std::vector<float> logits{std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  Sampler two = MakeSampler({.top_p = 0.75f}, 3);
  EXPECT_DOUBLE_EQ(Frequencies(two, logits, 2000)[2], 0);
  Sampler one = MakeSampler({.top_p = 0.4f}, 3);
  EXPECT_NEAR(Frequencies(one, logits, 2000)[1], 1, 1e-9);
}

TEST(Sampler, MinPDropsBelowItsShareOfTheBest) {
  const std::vector<float> logits{std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  Sampler sampler = MakeSampler({.min_p = 0.5f}, 3);
  const std::vector<double> share = Frequencies(sampler, logits, 4000);
  EXPECT_DOUBLE_EQ(share[2], 0);
  EXPECT_NEAR(share[1], 0.625, 0.03);
}

TEST(Sampler, PenaltiesChangeTheLogitsAsDocumented) {
  Sampler repetition = MakeSampler({.temperature = 0, .repetition_penalty = 2}, 3);
  repetition.Accept(0, /*is_prompt=*/true);
  repetition.Accept(0, /*is_prompt=*/true);
  EXPECT_EQ(SampleAt(repetition, {3.0f, 1.6f, -5.0f}, 0), 1);  // 3 / 2 once, not twice
  EXPECT_EQ(SampleAt(repetition, {3.0f, 1.4f, -5.0f}, 0), 0);
  Sampler negative = MakeSampler({.temperature = 0, .repetition_penalty = 2}, 2);
  negative.Accept(0, true);
  EXPECT_EQ(SampleAt(negative, {-1.0f, -1.5f}, 0), 1);  // -1 becomes -2

  Sampler presence = MakeSampler({.temperature = 0, .presence_penalty = 1}, 2);
  presence.Accept(0, /*is_prompt=*/true);  // the prompt does not count
  EXPECT_EQ(SampleAt(presence, {1.0f, 0.5f}, 0), 0);
  presence.Accept(0, /*is_prompt=*/false);
  presence.Accept(0, /*is_prompt=*/false);
  EXPECT_EQ(SampleAt(presence, {1.0f, 0.5f}, 0), 1);
  EXPECT_EQ(SampleAt(presence, {1.6f, 0.5f}, 0), 0);  // once, however often

  Sampler frequency = MakeSampler({.temperature = 0, .frequency_penalty = 0.5f}, 2);
  for (int i = 0; i < 3; ++i) frequency.Accept(0, false);
  EXPECT_EQ(SampleAt(frequency, {1.9f, 0.5f}, 0), 1);  // 1.9 - 3 * 0.5
  EXPECT_EQ(SampleAt(frequency, {2.1f, 0.5f}, 0), 0);
}

TEST(Sampler, PenaltyTokensLimitsWhatIsLookedAt) {
  Sampler sampler = MakeSampler({.temperature = 0, .presence_penalty = 2, .penalty_tokens = 1}, 3);
  sampler.Accept(0, false);
  sampler.Accept(2, false);
  EXPECT_EQ(SampleAt(sampler, {1.0f, 0.5f, 1.5f}, 0), 0);
}

TEST(Sampler, ADrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits(100, 0.0f);
  Sampler first = MakeSampler({.seed = 9}, 100), second = MakeSampler({.seed = 9}, 100), other = MakeSampler({.seed = 10}, 100);
  SampleAt(second, logits, 1);
  int equal = 0;
  for (int64_t position = 0; position < 200; ++position) {
    const int32_t token = SampleAt(first, logits, position);
    EXPECT_EQ(token, SampleAt(second, logits, position));
    equal += token == SampleAt(other, logits, position);
  }
  EXPECT_LT(equal, 20);
}

// What a draw must be, by sorting everything: the sampler itself sorts no farther than it has to.
std::vector<int32_t> AllowedInOrder(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) order.resize(params.top_k);
  const auto weight = [&](int32_t token) {
    return std::exp((static_cast<double>(logits[token]) - logits[order[0]]) / params.temperature);
  };
  double total = 0, sum = 0;
  for (const int32_t token : order) total += weight(token);
  size_t kept = 0;
  while (kept < order.size() && (params.top_p == 1.0f || sum < static_cast<double>(params.top_p) * total)) {
    sum += weight(order[kept++]);
  }
  order.resize(kept);
  while (weight(order.back()) < static_cast<double>(params.min_p)) order.pop_back();
  return order;
}

TEST(Sampler, DrawsWhatAFullSortAllows) {
  const uint64_t seed = oscar::testing::TestSeed(20240607);
  std::mt19937_64 rng(seed);
  const auto pick = [&](auto... values) {
    const double all[] = {static_cast<double>(values)...};
    return all[rng() % std::size(all)];
  };
  for (int round = 0; round < 300; ++round) {
    SamplingParams params{.temperature = static_cast<float>(pick(0.3, 1, 5)),
                          .top_k = static_cast<int>(pick(0, 1, 7, 200, 5000)),
                          .top_p = static_cast<float>(pick(0.01, 0.5, 0.9, 0.999, 1)),
                          .min_p = static_cast<float>(pick(0, 0.02, 0.5, 1)),
                          .seed = rng()};
    const size_t size = static_cast<size_t>(pick(1, 2, 63, 65, 300, 3000));
    std::vector<float> logits = oscar::testing::NormalVector(rng, size, static_cast<float>(pick(0.5, 3)));
    if (round % 3 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // ties
    }
    Sampler sampler = MakeSampler(params, static_cast<int>(size));
    const std::vector<int32_t> allowed = AllowedInOrder(params, logits);
    for (int64_t position = 0; position < 20; ++position) {
      const int32_t token = SampleAt(sampler, logits, position);
      ASSERT_NE(std::find(allowed.begin(), allowed.end(), token), allowed.end()) << "seed " << seed << ", round " << round;
    }
  }
}

TEST(Sampler, NonFiniteLogitsAreAnErrorAndMinusInfinityIsNever) {
  const float inf = std::numeric_limits<float>::infinity();
  Sampler sampler = MakeSampler({}, 3);
  EXPECT_EQ(sampler.Sample(std::vector<float>{0.0f, std::nanf(""), 0.0f}, 0).status().code(), StatusCode::kNonFinite);
  EXPECT_EQ(sampler.Sample(std::vector<float>{0.0f, inf, 0.0f}, 0).status().code(), StatusCode::kNonFinite);
  EXPECT_EQ(sampler.Sample(std::vector<float>{-inf, -inf, -inf}, 0).status().code(), StatusCode::kNonFinite);
  EXPECT_EQ(sampler.Sample(std::vector<float>{0.0f}, 0).status().code(), StatusCode::kInvalidArgument);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(SampleAt(sampler, {-inf, 0.0f, -inf}, i), 1);
}

TEST(Sampler, ExtremeTemperaturesStayFinite) {
  Sampler cold = MakeSampler({.temperature = 1e-20f}, 3), hot = MakeSampler({.temperature = 100}, 3);
  EXPECT_EQ(SampleAt(cold, {1.0f, 1.001f, -50.0f}, 0), 1);
  EXPECT_NEAR(Frequencies(hot, {1.0f, 2.0f, 3.0f}, 6000)[0], 0.33, 0.03);
}

TEST(Sampler, BiasComesBeforeLimitsAndLimitsBeforeEverythingElse) {
  Sampler sampler = MakeSampler({.temperature = 0, .logit_bias = {{2, 10.0f}, {3, 100.0f}}}, 40);
  std::vector<float> logits(40, 0.0f);
  logits[1] = 5;
  EXPECT_EQ(SampleAt(sampler, logits, 0), 3);
  const std::vector<uint32_t> allowed = {0b0111};  // 0, 1, 2; nothing behind token 31
  const std::vector<int32_t> forbidden = {2};
  EXPECT_EQ(*sampler.Sample(logits, 0, {.allowed = allowed}), 2);
  EXPECT_EQ(*sampler.Sample(logits, 0, {.allowed = allowed, .forbidden = forbidden}), 1);
  EXPECT_EQ(*sampler.Sample(logits, 0, {.forbidden = forbidden}), 3);
  const std::vector<uint32_t> nothing = {0, 0};
  EXPECT_EQ(sampler.Sample(logits, 0, {.allowed = nothing}).status().code(), StatusCode::kNonFinite);
  Sampler warm = MakeSampler({.temperature = 1.5f}, 40);
  for (int64_t i = 0; i < 200; ++i) EXPECT_LT(*warm.Sample(logits, i, {.allowed = allowed}), 3);
}

TEST(Sampler, ABiasOfATokenThatIsNotThereIsRefused) {
  EXPECT_EQ(Sampler::Create({.logit_bias = {{3, 1.0f}}}, 3).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(ValidateSamplingParams({.logit_bias = {{0, 101.0f}}}).ok());
}

TEST(Sampler, ChoicesOfOneSeedDrawDifferently) {
  const std::vector<float> logits(1000, 0.0f);
  Sampler first = MakeSampler({.choice = 0}, 1000), again = MakeSampler({.choice = 0}, 1000), second = MakeSampler({.choice = 1}, 1000);
  int same = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const int32_t token = SampleAt(first, logits, i);
    EXPECT_EQ(SampleAt(again, logits, i), token);
    same += SampleAt(second, logits, i) == token;
  }
  EXPECT_LT(same, 5);
}

TEST(SamplingParams, ValuesOutOfRangeAreNamed) {
  const auto message = [](const SamplingParams& params) { return ValidateSamplingParams(params).message(); };
  EXPECT_NE(message({.temperature = -1}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.temperature = std::nanf("")}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.top_k = -1}).find("top_k"), std::string::npos);
  EXPECT_NE(message({.top_p = 0}).find("top_p"), std::string::npos);
  EXPECT_NE(message({.min_p = 1.5f}).find("min_p"), std::string::npos);
  EXPECT_NE(message({.repetition_penalty = 0}).find("repetition_penalty"), std::string::npos);
  EXPECT_NE(message({.presence_penalty = 3}).find("presence_penalty"), std::string::npos);
  EXPECT_NE(message({.frequency_penalty = -3}).find("frequency_penalty"), std::string::npos);
  EXPECT_TRUE(ValidateSamplingParams({}).ok());
}

TEST(SamplingParams, PlainGreedyTakesTheLargestLogitWhateverElseIsGiven) {
  EXPECT_TRUE(IsPlainGreedy({.temperature = 0}));
  EXPECT_TRUE(IsPlainGreedy({.temperature = 0, .top_k = 5, .top_p = 0.5f, .min_p = 0.1f}));
  EXPECT_FALSE(IsPlainGreedy({}));
  EXPECT_FALSE(IsPlainGreedy({.temperature = 0, .repetition_penalty = 1.1f}));
  EXPECT_FALSE(IsPlainGreedy({.temperature = 0, .presence_penalty = 0.5f}));
  EXPECT_FALSE(IsPlainGreedy({.temperature = 0, .frequency_penalty = -0.5f}));
  EXPECT_FALSE(IsPlainGreedy({.temperature = 0, .logit_bias = {{3, 1.0f}}}));
}

TEST(ScoreToken, GivesTheSoftmaxOfTheTokenAndOfTheMostLikelyOnesInOrder) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  const TokenScore score = ScoreToken(logits, 0, 2);
  EXPECT_EQ(score.token.token, 0);
  EXPECT_NEAR(score.token.log_probability, std::log(0.2), 1e-6);
  ASSERT_EQ(score.top.size(), 2u);
  EXPECT_EQ(score.top[0].token, 1);
  EXPECT_NEAR(score.top[0].log_probability, std::log(0.5), 1e-6);
  EXPECT_EQ(score.top[1].token, 2);
  EXPECT_EQ(ScoreToken(logits, 1, 1).token.log_probability, ScoreToken(logits, 1, 1).top[0].log_probability);
  EXPECT_TRUE(ScoreToken(logits, 1, 0).top.empty());
  EXPECT_EQ(score.rank, 3);
  EXPECT_EQ(ScoreToken(logits, 1, 0).rank, 1);
  EXPECT_EQ(ScoreToken(logits, 1, 20).top.size(), 3u);
}

}  // namespace
}  // namespace oscar::engine
