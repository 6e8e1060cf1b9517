// Draws on a CUDA device against Sampler on the same logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/base/cuda_memory.h"
#include "src/engine/ops/cuda/token_draw.h"
#include "src/engine/sample/sampler.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

bool HasDevice() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// The words that the kernel leaves for rows of logits.
std::vector<uint64_t> DrawnFrom(const std::vector<float>& logits, const std::vector<TokenDraw>& draws) {
  const size_t width = logits.size() / draws.size();
  const auto [rows, changes] = DrawRows(draws);
  cuda::DeviceArray<float> device_logits;
  cuda::DeviceArray<DrawRow> device_rows;
  cuda::DeviceArray<LogitChange> device_changes;
  cuda::DeviceArray<uint64_t> keys, drawn;
  EXPECT_TRUE(device_logits.Upload(logits, nullptr).ok() && device_rows.Upload(rows, nullptr).ok() && device_changes.Upload(changes, nullptr).ok());
  EXPECT_TRUE(keys.Grow(logits.size()).ok() && drawn.Grow(draws.size()).ok());
  const TokenDrawParams params = {device_logits.data(), device_rows.data(), device_changes.data(), keys.data(), drawn.data(),
                                  static_cast<int32_t>(draws.size()), static_cast<int32_t>(width)};
  EXPECT_EQ(LaunchTokenDraw(params, nullptr), cudaSuccess);
  std::vector<uint64_t> found(draws.size());
  EXPECT_EQ(cudaMemcpy(found.data(), drawn.data(), found.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost), cudaSuccess);
  return found;
}

// Logits of one kind of distribution: 0 normal, 1 few values and so many equals, 2 one far above, 3 all equal, 4 signed zeros.
std::vector<float> Logits(std::mt19937_64& rng, int width, int kind) {
  std::vector<float> logits = testing::NormalVector(rng, static_cast<size_t>(width));
  for (float& logit : logits) {
    if (kind == 0) logit *= 3.0f;
    if (kind == 1) logit = std::round(2.0f * logit);
    if (kind == 3) logit = -2.5f;
    if (kind == 4) logit = logit > 1.0f ? 0.0f : (logit > 0.0f ? -0.0f : logit);
  }
  if (kind == 2) logits[static_cast<size_t>(width / 2)] = 60.0f;
  return logits;
}

// How many tokens stand before this one, most likely first, once their logits are changed.
int RankOf(std::vector<float> logits, const TokenDraw& draw, uint64_t token) {
  for (const LogitChange& change : draw.changes) {
    float& logit = logits[static_cast<size_t>(change.token)];
    logit = logit + change.bias - change.penalty;
    logit = logit > 0 ? logit / change.repetition : logit * change.repetition;
  }
  int rank = 0;
  for (size_t i = 0; i < logits.size(); ++i) rank += logits[i] > logits[token] || (logits[i] == logits[token] && i < token) ? 1 : 0;
  return rank;
}

// Probabilities are f32 here and double there: a draw at the edge of two tokens may fall to the other side, one time in some hundreds.
TEST(CudaTokenDraw, TokensAreThoseOfASampler) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  std::vector<SamplingParams> settings = {
      {.temperature = 1.0f},
      {.temperature = 0.0f, .repetition_penalty = 1.3f},
      {.temperature = 0.7f, .top_k = 1},
      {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f},
      {.temperature = 1.5f, .top_k = 1000, .top_p = 0.99f, .min_p = 0.002f},
      {.temperature = 1.0f, .top_p = 0.9f},
      {.temperature = 3.0f, .min_p = 0.05f},
      {.temperature = 100.0f},
      {.temperature = 1e-5f},
      {.temperature = 1e-38f, .top_p = 0.5f},
      {.temperature = 0.9f, .top_p = 1e-6f},
      {.temperature = 1.0f, .min_p = 1.0f},
      {.temperature = 1.0f, .repetition_penalty = 1.1f, .presence_penalty = 1.5f, .frequency_penalty = -0.5f, .logit_bias = {{0, 5.0f}}},
  };
  std::mt19937_64 rng(testing::TestSeed(93));
  int draws_in_all = 0, at_an_edge = 0;
  for (const int width : {1, 2, 33, 1024, 5003, 49152, 151936}) {
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<float> logits;
      std::vector<TokenDraw> draws;
      std::vector<int32_t> expected;
      for (size_t s = 0; s < settings.size(); ++s) {
        for (int64_t position = 0; position < 3; ++position) {
          settings[s].seed = 100 + s;
          Sampler sampler = std::move(Sampler::Create(settings[s], width)).value();
          for (int i = 0; i < 40; ++i) sampler.Accept(static_cast<int32_t>(rng() % static_cast<uint64_t>(std::min(width, 60))), i % 3 == 0);
          const std::vector<float> row = Logits(rng, width, kind);
          draws.push_back(sampler.DrawAt(position));
          expected.push_back(*sampler.Sample(row, position));
          logits.insert(logits.end(), row.begin(), row.end());
        }
      }
      const std::vector<uint64_t> found = DrawnFrom(logits, draws);
      for (size_t i = 0; i < found.size(); ++i) {
        ++draws_in_all;
        if (found[i] == static_cast<uint64_t>(expected[i])) continue;
        ++at_an_edge;
        ASSERT_LT(found[i], static_cast<uint64_t>(width));
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i) * width;
        const std::vector<float> row(begin, begin + width);
        EXPECT_EQ(std::abs(RankOf(row, draws[i], found[i]) - RankOf(row, draws[i], static_cast<uint64_t>(expected[i]))), 1)
            << "width " << width << " kind " << kind << " settings " << i / 3 << " position " << i % 3 << " token " << found[i] << " not " << expected[i];
      }
    }
  }
  EXPECT_LE(at_an_edge, draws_in_all / 100);
}

// Thousands of draws of one distribution: each token about as often as its probability says.
TEST(CudaTokenDraw, DrawsFollowTheProbabilities) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  constexpr int kDraws = 4096;
  const std::vector<float> row = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f};
  std::vector<float> logits;
  std::vector<TokenDraw> draws(kDraws);
  for (int i = 0; i < kDraws; ++i) {
    logits.insert(logits.end(), row.begin(), row.end());
    draws[static_cast<size_t>(i)].temperature = 2.0f;
    draws[static_cast<size_t>(i)].uniform = (i + 0.5) / kDraws;
  }
  std::vector<int> counts(row.size());
  for (const uint64_t token : DrawnFrom(logits, draws)) ++counts[static_cast<size_t>(token)];
  double total = 0;
  for (const float logit : row) total += std::exp(static_cast<double>(logit) / 2);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(counts[i], kDraws * std::exp(static_cast<double>(row[i]) / 2) / total, 1.01) << i;
}

TEST(CudaTokenDraw, TheFirstLogitThatIsNotFiniteIsNamed) {
  if (!HasDevice()) GTEST_SKIP() << "no CUDA device";
  constexpr size_t kWidth = 5003;
  std::mt19937_64 rng(testing::TestSeed(94));
  std::vector<float> logits = testing::NormalVector(rng, 3 * kWidth);
  logits[600] = std::nanf(""), logits[2000] = INFINITY;
  logits[kWidth + 4999] = -INFINITY;
  std::vector<TokenDraw> draws(3);
  draws[0].temperature = draws[2].temperature = 1.0f;
  const std::vector<uint64_t> found = DrawnFrom(logits, draws);
  EXPECT_EQ(found[0], (uint64_t{1} << 32) | 600);
  EXPECT_EQ(found[1], (uint64_t{1} << 32) | 4999);
  EXPECT_LT(found[2], kWidth);
}

}  // namespace
}  // namespace oscar::engine
