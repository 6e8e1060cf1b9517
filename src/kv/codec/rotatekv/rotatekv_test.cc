// RotateKV: the golden vectors of its quantiser and rotations, and four heads together against double precision.
#include "src/kv/codec/rotatekv/rotatekv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "src/kv/codec/code_groups.h"
#include "src/testing/golden_file.h"
#include "src/testing/random_rotation.h"
#include "src/testing/seeds.h"

namespace oscar::rotatekv {
namespace {

using testing::Golden;
using testing::json;
using DoubleRows = std::vector<std::vector<double>>;

struct Group {
  codec::GroupGrid grid;
  std::string codes;
  std::vector<double> x_hat;
};
Group Quantise(const std::vector<float>& y, float range_factor) {
  Group group;
  group.codes.resize(y.size());
  group.grid = codec::EncodeIntegerZero({y.data(), y.size(), 1}, 3, range_factor, [&](size_t i, unsigned code) { group.codes[i] = "0123"[code]; });
  for (const char code : group.codes) {
    group.x_hat.push_back(double{base::F32FromF16(group.grid.offset_f16)} + double{base::F32FromF16(group.grid.scale_f16)} * (code - '0'));
  }
  return group;
}

TEST(RotateKvGolden, TheQuantiserHasTheCodesOfTheGoldenFile) {
  for (const json& item : Golden()["rotatekv"]["quantiser"]) {
    const Group group = Quantise(item["values"].get<std::vector<float>>(), item["clip"]);
    EXPECT_EQ(group.codes, item["codes"]);
    for (size_t i = 0; i < group.x_hat.size(); ++i) EXPECT_NEAR(group.x_hat[i], item["xhat"][i].get<double>(), 4e-3);
  }
}

// All orders of the golden file: rotate blocks, permute, quantise groups of 128, and back.
TEST(RotateKvGolden, RotatedGroupsHaveTheErrorsOfTheGoldenFile) {
  int num_cases = 0;
  for (const json& item : Golden()["rotatekv"]["cases"]) {
    SCOPED_TRACE(item["id"].get<std::string>());
    const std::vector<float> w512 = [] {
      std::vector<float> values;
      for (int i = 0; i < 512; ++i) values.push_back(i == 5 ? 24.0f : i == 70 ? -20.0f : static_cast<float>(((17 * i * i + 29 * i + 5) % 257 - 128) / 32.0));
      return values;
    }();
    const std::vector<float> x(w512.begin(), item["input"] == "W512" ? w512.end() : w512.begin() + 256);
    const int order = item["hadamard"];
    const std::vector<float> y = testing::HadamardBlocks(x, order, false);
    std::vector<size_t> permutation(y.size());
    std::iota(permutation.begin(), permutation.end(), size_t{0});
    const std::string name = item["permutation"];
    if (name == "reversed") std::reverse(permutation.begin(), permutation.end());
    if (name == "stride5") {
      for (size_t i = 0; i < permutation.size(); ++i) permutation[i] = 5 * i % 512;
    }
    if (name == "sorted") std::stable_sort(permutation.begin(), permutation.end(), [&](size_t a, size_t b) { return y[a] < y[b]; });
    std::vector<double> back(y.size());
    for (size_t first = 0; first < y.size(); first += 128) {
      std::vector<float> values;
      for (size_t i = 0; i < 128; ++i) values.push_back(y[permutation[first + i]]);
      const Group group = Quantise(values, item["clip"]);
      for (size_t i = 0; i < 128; ++i) back[permutation[first + i]] = group.x_hat[i];
      if (item.contains("scale")) {
        EXPECT_NEAR(base::F32FromF16(group.grid.scale_f16), item["scale"][first / 128].get<double>(), 1e-3 * item["scale"][first / 128].get<double>());
      }
    }
    const double expected = item["relmse"];
    EXPECT_NEAR(testing::RelativeMse({x}, {testing::HadamardBlocksInDouble(back, order)}), expected, 2e-3 * expected);  // fp16 metadata
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 8);
}

// Four heads through the codec against the formulas in double. A code that rounding errors decide moves one value by a step.
TEST(RotateKv, FourHeadsAreThoseOfTheFormulas) {
  std::mt19937_64 rng(testing::TestSeed(121));
  for (const size_t d : {size_t{64}, size_t{128}}) {
    std::vector<std::byte> bytes(4 * PageBytes(static_cast<int>(d)), std::byte{0xFF});
    kernels::UnitPages<std::byte> pages{{bytes.data(), nullptr}};
    std::vector<uint16_t> order(4 * d);  // of keys
    std::iota(order.begin(), order.end(), uint16_t{0});
    std::shuffle(order.begin(), order.end(), rng);
    pages.channel_order = order;
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const std::vector<float> rows = testing::NormalVector(rng, 4 * 64 * d);
      ASSERT_EQ(Codec().encode(side, static_cast<int>(d), rows.data(), pages), -1);
      double error = 0, power = 0;
      for (size_t t = 0; t < 64; ++t) {
        std::vector<double> y(4 * d), expected(4 * d);
        for (size_t c = 0; c < 4 * d; ++c) y[c] = double{rows[(c / d * 64 + t) * d + c % d]};
        if (side == KvSide::kKey) y = testing::HadamardBlocksInDouble(y, static_cast<int>(4 * d));
        const size_t group = side == KvSide::kKey ? 128 : d;
        for (size_t first = 0; first < 4 * d; first += group) {
          std::vector<size_t> members;
          for (size_t c = first; c < first + group; ++c) members.push_back(side == KvSide::kKey ? order[c] : c);
          const auto less = [&](size_t a, size_t b) { return y[a] < y[b]; };
          const double lo = 0.8 * y[*std::min_element(members.begin(), members.end(), less)];
          const double s = (0.8 * y[*std::max_element(members.begin(), members.end(), less)] - lo) / 3, z = std::nearbyint(-lo / s);
          for (const size_t c : members) expected[c] = (std::clamp(std::nearbyint(y[c] / s) + z, 0.0, 3.0) - z) * s;
        }
        if (side == KvSide::kKey) expected = testing::HadamardBlocksInDouble(expected, static_cast<int>(4 * d));
        for (int head = 0; head < 4; ++head) {
          std::vector<float> tile(16 * d);
          const kernels::UnitPages<const std::byte> stored{{bytes.data(), nullptr}, head, order};
          Codec().read_tile(side, static_cast<int>(d), stored, static_cast<int>(t / 16 * 16), tile.data());
          for (size_t c = 0; c < d; ++c) {
            const double difference = double{tile[t % 16 * d + c]} - expected[static_cast<size_t>(head) * d + c];
            error += difference * difference;
            power += expected[static_cast<size_t>(head) * d + c] * expected[static_cast<size_t>(head) * d + c];
          }
        }
      }
      EXPECT_LE(error / power, 1e-5) << "d " << d << " side " << static_cast<int>(side);  // fp16 pairs, and a code or two
    }
  }
}

TEST(RotateKv, ConstantRowsReadBackAndHugeOnesAreRefused) {
  std::vector<std::byte> bytes(4 * PageBytes(64), std::byte{0xFF});
  kernels::UnitPages<std::byte> pages{{bytes.data(), nullptr}};
  std::vector<float> rows(4 * 64 * 64, 0.0f), tile(16 * 64);
  for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
    ASSERT_EQ(Codec().encode(side, 64, rows.data(), pages), -1);
    Codec().read_tile(side, 64, {{bytes.data(), nullptr}, 2}, 16, tile.data());
    EXPECT_EQ(tile, std::vector<float>(16 * 64, 0.0f));
    std::vector<float> huge = rows;
    huge[static_cast<size_t>((2 * 64 + 37) * 64 + 5)] = 3e38f;  // head 2, token 37
    EXPECT_EQ(Codec().encode(side, 64, huge.data(), pages), 37);
  }
}

TEST(RotateKv, ModelsThatItCannotServeAreRefused) {
  const auto make = [](int kv_heads, int d, const RotaryEmbedding& rotary) {
    return DataFreeProfile("rotatekv_unordered", {.num_layers = 1, .num_query_heads = kv_heads, .num_kv_heads = kv_heads, .head_dim = d}, rotary).status().code();
  };
  EXPECT_EQ(make(4, 64, testing::PowersOfTenRotary(64, true)), StatusCode::kOk);
  EXPECT_EQ(make(8, 128, testing::PowersOfTenRotary(128, false)), StatusCode::kOk);
  EXPECT_EQ(make(3, 64, testing::PowersOfTenRotary(64, true)), StatusCode::kUnsupported);
  EXPECT_EQ(make(4, 96, testing::PowersOfTenRotary(96, true)), StatusCode::kUnsupported);
  EXPECT_EQ(make(4, 256, testing::PowersOfTenRotary(256, true)), StatusCode::kUnsupported);
  EXPECT_EQ(make(4, 64, {}), StatusCode::kUnsupported);
  const KvShape shape{.num_layers = 1, .num_query_heads = 4, .num_kv_heads = 4, .head_dim = 64};
  EXPECT_EQ(DataFreeProfile("rotatekv", shape, testing::PowersOfTenRotary(64, true)).status().code(), StatusCode::kFailedPrecondition);
}

TEST(RotateKv, StoresTheBitsOfTheLedger) {
  EXPECT_EQ(4 * PageBytes(128), 4 * 2 * 64 * 36);        // 2.25 bits
  EXPECT_EQ(4 * PageBytes(64), 4 * 64 * (18 + 20));      // K 2.25, V 2.5
}

}  // namespace
}  // namespace oscar::rotatekv
