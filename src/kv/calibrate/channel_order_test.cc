#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "oscar/calibrate.h"
#include "src/testing/golden_file.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"

namespace oscar {
namespace {

// The order of the released code: by the sum of each rotated channel before RoPE, here computed token by token in double.
TEST(ChannelOrder, SortsTheRotatedChannelsOfFourHeadsByTheirSums) {
  const KvShape shape{.num_layers = 2, .num_query_heads = 8, .num_kv_heads = 8, .head_dim = 64};
  const RotaryEmbedding rotary = testing::PowersOfTenRotary(64, true);
  ChannelSums sums(shape, rotary);
  const int tokens = 520;
  std::mt19937_64 rng(testing::TestSeed(71));
  std::vector<std::vector<float>> layers;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    std::vector<float>& keys = layers.emplace_back(testing::NormalVector(rng, static_cast<size_t>(tokens) * 8 * 64));
    for (size_t i = 0; i < keys.size(); ++i) keys[i] += static_cast<float>(i % 7);  // a mean that differs by channel
    const RowsView<const float> rows = PackedRows<const float>(keys.data(), tokens, 8, 64);
    ASSERT_TRUE(sums.Add(layer, 1000, rows.Slice(0, 100)).ok());
    EXPECT_EQ(FitChannelOrder(sums, {}).status().code(), StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sums.Add(layer, 1100, rows.Slice(100, tokens - 100)).ok());
  }
  const CodecProfile profile = FitChannelOrder(sums, {}).value();
  EXPECT_EQ(profile.method(), "rotatekv");
  EXPECT_EQ(profile.provenance().num_tokens, tokens);
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int four = 0; four < 8; four += 4) {
      std::vector<double> sum(256);
      for (int token = 0; token < tokens; ++token) {
        std::vector<double> row;
        for (int head = four; head < four + 4; ++head) {
          const float* key = layers[static_cast<size_t>(layer)].data() + (token * 8 + head) * 64;
          std::vector<double> turned(key, key + 64);
          for (size_t j = 0; j < 32; ++j) {
            const double angle = -(1000.0 + token) * static_cast<double>(rotary.angles[j]), x = turned[j], y = turned[j + 32];
            turned[j] = x * std::cos(angle) - y * std::sin(angle);
            turned[j + 32] = x * std::sin(angle) + y * std::cos(angle);
          }
          row.insert(row.end(), turned.begin(), turned.end());
        }
        const std::vector<double> rotated = testing::HadamardBlocksInDouble(row, 256);
        for (size_t c = 0; c < 256; ++c) sum[c] += rotated[c] / tokens;
      }
      const std::span<const uint16_t> order = profile.row(layer, four, KvSide::kKey).channel_order;
      ASSERT_EQ(order.size(), 256u);
      for (size_t i = 1; i < 256; ++i) EXPECT_LE(sum[order[i - 1]], sum[order[i]] + 1e-4);
      EXPECT_LT(sum[order[0]], sum[order[255]] - 0.1);
    }
  }
  std::vector<float> bad(2 * 8 * 64, 1.0f);
  bad[64 * 9 + 3] = std::nanf("");
  const Status status = sums.Add(1, 0, PackedRows<const float>(bad.data(), 2, 8, 64));
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_NE(status.message().find("layer 1, KV head 1, token 521"), std::string::npos) << status.message();
  EXPECT_EQ(sums.num_tokens(1), tokens);
}

}  // namespace
}  // namespace oscar
