// The plan kernel against the host's plan, append against the layout, merge against float64. Needs
// a GPU; label cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "src/kv/kernels/cuda/cache_kernels.h"
#include "src/kv/kernels/cuda/decode_fixture.h"

namespace oscar::kernels::cuda {
namespace {

using fixture::DeviceBuffer;

class CacheKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device";
  }
};

void ExpectSamePlan(const std::vector<int32_t>& tokens, const DecodePlanOptions& options) {
  std::vector<SequenceExtent> extents;
  for (const int32_t n : tokens) extents.push_back(ExtentOfSequence(n, 64, 256));
  const DecodePlan expected = PlanDecode(extents, options);
  DeviceBuffer<int32_t> lengths(tokens);
  DeviceBuffer<DecodeStart> starts(options.num_ctas);
  DeviceBuffer<DecodeItem> items(expected.num_slots);
  items.Fill(0);
  ASSERT_EQ(LaunchPlan({lengths.data(), static_cast<int32_t>(tokens.size()), options.kv_heads,
                        options.head_dim, options.num_ctas, 64, 256,
                        options.whole_splits_below_bytes, starts.data(), items.data()},
                       nullptr),
            cudaSuccess);
  const std::vector<DecodeStart> actual_starts = starts.Download();
  const std::vector<DecodeItem> actual_items = items.Download();
  EXPECT_EQ(0, std::memcmp(actual_starts.data(), expected.starts.data(),
                           actual_starts.size() * sizeof(DecodeStart)));
  EXPECT_EQ(0, std::memcmp(actual_items.data(), expected.items.data(),
                           actual_items.size() * sizeof(DecodeItem)));
}

TEST_F(CacheKernels, ThePlanKernelMakesThePlanOfTheHost) {
  std::mt19937_64 rng(11);
  for (int round = 0; round < 120; ++round) {
    DecodePlanOptions options;
    options.kv_heads = 1 + static_cast<int>(rng() % 8);
    options.head_dim = 64 * (1 + static_cast<int>(rng() % 4));
    options.num_ctas = round % 3 == 0 ? 132 : 1 + static_cast<int>(rng() % 300);
    const int batch = round % 10 == 9 ? 600 : 1 + static_cast<int>(rng() % 70);
    const int longest = 1 << (rng() % 18), equal = static_cast<int>(rng() % (longest + 1));
    std::vector<int32_t> tokens;
    for (int i = 0; i < batch; ++i)
      tokens.push_back(round % 2 ? equal : static_cast<int>(rng() % (longest + 1)));
    ExpectSamePlan(tokens, options);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_F(CacheKernels, AppendedRowsStandWhereTheLayoutSays) {
  for (const int d : {64, 128, 192, 256}) {
    const int heads = 3, tokens = 130, pages = 5, stride = (4 + 2 * heads) * d;
    std::mt19937_64 rng(d);
    std::vector<uint16_t> rows(static_cast<size_t>(tokens) * stride);
    for (uint16_t& x : rows) x = static_cast<uint16_t>(rng() & 0xBFFF);
    std::vector<int32_t> page(tokens), slot(tokens);
    for (int i = 0; i < tokens; ++i) {
      page[i] = 4 - (i + 40) / 64;
      slot[i] = (i + 40) % 64;
    }
    const size_t bytes = static_cast<size_t>(pages) * heads * Bf16BlockBytes(d);
    std::vector<uint8_t> expected(bytes, 0xFF);
    for (int i = 0; i < tokens; ++i) {
      for (int head = 0; head < heads; ++head) {
        for (int dim = 0; dim < d; ++dim) {
          uint8_t* block =
              &expected[(static_cast<size_t>(page[i]) * heads + head) * Bf16BlockBytes(d)];
          const uint16_t* row = &rows[static_cast<size_t>(i) * stride + 4 * d + head * d + dim];
          std::memcpy(block + Bf16KeyOffset(d, slot[i], dim), row, 2);
          std::memcpy(block + Bf16ValueOffset(d, slot[i], dim), row + heads * d, 2);
        }
      }
    }
    DeviceBuffer<uint16_t> source(rows);
    DeviceBuffer<int32_t> page_ids(page), slots(slot);
    DeviceBuffer<uint8_t> pool(bytes);
    pool.Fill(0xFF);
    DeviceBuffer<DeviceStatus> status(1);
    status.Fill(0);
    AppendParams params{source.data() + 4 * d,
                        source.data() + (4 + heads) * d,
                        stride,
                        page_ids.data(),
                        slots.data(),
                        pool.data(),
                        status.data(),
                        6,
                        heads,
                        d};
    ASSERT_EQ(LaunchAppend(params, tokens, nullptr), cudaSuccess);
    EXPECT_EQ(pool.Download(), expected);
    EXPECT_EQ(status.Download()[0].code, 0);

    rows[static_cast<size_t>(77) * stride + (4 + heads + 1) * d + d - 1] =
        0xFF80;  // value of head 1, minus infinity
    source.Upload(rows);
    ASSERT_EQ(LaunchAppend(params, tokens, nullptr), cudaSuccess);
    const DeviceStatus seen = status.Download()[0];
    EXPECT_EQ(seen.code, 1);
    EXPECT_EQ(seen.layer, 6);
    EXPECT_EQ(seen.head, 1);
    EXPECT_EQ(seen.job, 77);
    EXPECT_EQ(seen.token, slot[77]);
    EXPECT_EQ(seen.side, 1);
  }
}

TEST_F(CacheKernels, MergedStatesAreThoseOfFloat64) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (const int d : {64, 128, 192, 256}) {
    for (const int parts : {1, 2, 3, 17}) {
      const int rows = 37;
      std::mt19937_64 rng(d + parts);
      std::normal_distribution<float> normal;
      std::vector<float> outputs(static_cast<size_t>(parts) * rows * d),
          lses(static_cast<size_t>(parts) * rows);
      for (float& x : outputs) x = normal(rng);
      for (float& x : lses) x = rng() % 4 == 0 ? kNone : 30.0f * normal(rng);
      for (int part = 0; part < parts; ++part) lses[static_cast<size_t>(part) * rows + 5] = kNone;
      for (size_t i = 0; i < lses.size(); ++i) {  // parts without tokens hold anything
        if (lses[i] == kNone)
          std::fill_n(&outputs[i * d], d, std::numeric_limits<float>::quiet_NaN());
      }
      DeviceBuffer<float> output_buffer(outputs), lse_buffer(lses),
          merged(static_cast<size_t>(rows) * d), merged_lse(rows);
      DeviceBuffer<uint16_t> rounded(static_cast<size_t>(rows) * d);
      merged.Fill(0xFF);
      ASSERT_EQ(LaunchMerge({output_buffer.data(), lse_buffer.data(), parts, rows, d,
                             rounded.data(), merged.data(), merged_lse.data()},
                            nullptr),
                cudaSuccess);
      const std::vector<float> actual = merged.Download(), actual_lse = merged_lse.Download();
      const std::vector<uint16_t> actual_bits = rounded.Download();
      for (int row = 0; row < rows; ++row) {
        double top = kNone, total = 0;
        for (int part = 0; part < parts; ++part)
          top = std::max<double>(top, lses[static_cast<size_t>(part) * rows + row]);
        std::vector<double> sum(d, 0.0);
        for (int part = 0; part < parts; ++part) {
          const size_t index = static_cast<size_t>(part) * rows + row;
          if (lses[index] == kNone) continue;
          const double weight = std::exp(lses[index] - top);
          total += weight;
          for (int i = 0; i < d; ++i) sum[i] += weight * outputs[index * d + i];
        }
        for (int i = 0; i < d; ++i) {
          const float value = actual[static_cast<size_t>(row) * d + i];
          ASSERT_NEAR(value, total > 0 ? sum[i] / total : 0.0, 2e-6) << "row " << row;
          ASSERT_EQ(actual_bits[static_cast<size_t>(row) * d + i], base::Bf16FromF32(value));
        }
        if (total > 0) {
          ASSERT_NEAR(actual_lse[row], top + std::log(total), 1e-5 * (1 + std::abs(top)));
        } else {
          ASSERT_EQ(actual_lse[row], kNone);
        }
      }
    }
  }
}

TEST_F(CacheKernels, TheRotatingMeanIsThatOfFloat64) {
  for (const int group : {1, 4, 7, 16}) {
    const int d = 128, heads = 3, batch = 2, num_pages = 300, num_pairs = 50;
    const int head_tile = group <= 4 ? 4 : (group <= 8 ? 8 : 16);
    const double kappa = 0.1275;
    std::mt19937_64 rng(group);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> query(static_cast<size_t>(batch) * heads * group * d);
    for (uint16_t& q : query) q = base::Bf16FromF32(normal(rng));
    std::vector<RotatingPair> pairs;
    for (int i = 0; i < heads * num_pairs; ++i) {
      const int x = i % num_pairs;
      const bool turns = x % 10 != 9;
      pairs.push_back({x, turns ? x + 64 : x, normal(rng), turns ? normal(rng) : 0.0f});
    }
    std::vector<double> angles;
    std::vector<float2> turns;
    for (int pair = 0; pair < num_pairs; ++pair) {
      angles.push_back(pairs[pair].x == pairs[pair].y ? 0.0 : 64.0 * std::pow(1e6, -pair / 64.0));
      for (int page = 0; page < num_pages; ++page) {
        turns.push_back({static_cast<float>(std::cos(angles[pair] * page)),
                         static_cast<float>(std::sin(angles[pair] * page))});
      }
    }
    DeviceBuffer<uint16_t> queries(query);
    DeviceBuffer<RotatingPair> pair_buffer(pairs);
    DeviceBuffer<float2> turn_buffer(turns);
    DeviceBuffer<float> page_beta(static_cast<size_t>(batch) * heads * num_pages * head_tile);
    page_beta.Fill(0xFF);
    ASSERT_EQ(LaunchRotatingMean(
                  {queries.data(), pair_buffer.data(), turn_buffer.data(), page_beta.data(),
                   num_pairs, num_pages, heads, group, head_tile, d, static_cast<float>(kappa)},
                  batch, nullptr),
              cudaSuccess);
    const std::vector<float> actual = page_beta.Download();
    for (size_t i = 0; i < actual.size(); ++i) {
      const int g = static_cast<int>(i % head_tile),
                page = static_cast<int>(i / head_tile % num_pages);
      const size_t pair_row = i / head_tile / num_pages;
      const size_t head = pair_row % heads;
      double expected = 0;
      for (int pair = 0; pair < num_pairs && g < group; ++pair) {
        const RotatingPair& p = pairs[head * num_pairs + pair];
        const uint16_t* q = &query[(pair_row * group + g) * d];
        const double c = std::cos(angles[pair] * page), s = std::sin(angles[pair] * page);
        expected += base::F32FromBf16(q[p.x]) * (p.real * c - p.imaginary * s);
        if (p.x != p.y) expected += base::F32FromBf16(q[p.y]) * (p.real * s + p.imaginary * c);
      }
      ASSERT_NEAR(actual[i], kappa * expected, 1e-5) << "page " << page << " g " << g;
    }
  }
}

}  // namespace
}  // namespace oscar::kernels::cuda
