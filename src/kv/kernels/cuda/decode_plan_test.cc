#include "src/kv/kernels/cuda/decode_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "src/testing/seeds.h"

namespace oscar::kernels::cuda {
namespace {

DecodePlanOptions Options(int kv_heads, int num_ctas) {
  DecodePlanOptions options;
  options.kv_heads = kv_heads;
  options.head_dim = 128;
  options.num_ctas = num_ctas;
  return options;
}

int64_t BytesOf(const DecodeItem& item) { return item.num_pages * int64_t{4608} + item.num_tiles * int64_t{8192}; }

// Every unit of every pair is in exactly one item, every item is run once, slots are right.
void ExpectComplete(const std::vector<SequenceExtent>& sequences, const DecodePlanOptions& options,
                    const DecodePlan& plan) {
  ASSERT_EQ(plan.starts.size(), static_cast<size_t>(options.num_ctas));
  std::map<int, int> runs;  // by slot
  for (const DecodeStart& start : plan.starts) {
    if (start.has_first) ++runs[start.first.slot];
    for (int i = start.next; i < start.end; ++i) ++runs[plan.items[i].slot];
    EXPECT_TRUE(start.has_first || start.next == start.end);
  }
  for (int i = plan.tail_first; i < plan.tail_end; ++i) ++runs[plan.items[i].slot];
  ASSERT_EQ(runs.size(), static_cast<size_t>(plan.num_slots));
  for (const auto& [slot, count] : runs) EXPECT_EQ(count, 1) << "slot " << slot;

  std::map<std::tuple<int, int, int>, std::vector<std::pair<int, int>>> parts;
  std::map<std::pair<int, int>, int> slots_of_pair;
  for (int slot = 0; slot < plan.num_slots; ++slot) {
    const DecodeItem& item = plan.items[slot];
    EXPECT_EQ(item.slot, slot);
    EXPECT_GE(slot, item.pair_first_slot);
    EXPECT_LT(slot, item.pair_first_slot + item.pair_num_slots);
    EXPECT_EQ(plan.items[item.pair_first_slot].sequence, item.sequence);
    ++slots_of_pair[{item.sequence, item.head}];
    parts[{item.sequence, item.head, 0}].emplace_back(item.first_page, item.num_pages);
    parts[{item.sequence, item.head, 1}].emplace_back(item.first_tile, item.num_tiles);
    EXPECT_EQ(item.num_rows, sequences[item.sequence].num_rows);
  }
  for (int slot = 0; slot < plan.num_slots; ++slot) {
    EXPECT_EQ(plan.items[slot].pair_num_slots, (slots_of_pair[{plan.items[slot].sequence, plan.items[slot].head}]));
  }
  for (int sequence = 0; sequence < static_cast<int>(sequences.size()); ++sequence) {
    for (int head = 0; head < options.kv_heads; ++head) {
      EXPECT_GE((slots_of_pair[{sequence, head}]), 1);
      for (const int kind : {0, 1}) {
        auto& list = parts[{sequence, head, kind}];
        std::sort(list.begin(), list.end());
        int next = 0;
        for (const auto& [first, count] : list) {
          EXPECT_TRUE(first == next || count == 0);
          next += count;
        }
        EXPECT_EQ(next, kind == 0 ? sequences[sequence].num_code_pages : (sequences[sequence].num_rows + 15) / 16);
      }
    }
  }
}

TEST(DecodePlan, TheTierRuleSplitsASequence) {
  for (const auto& [tokens, pages, rows] :
       {std::tuple{0, 0, 0}, {1, 0, 1}, {384, 0, 384}, {385, 1, 321}, {448, 1, 384}, {102400, 1594, 384}}) {
    const SequenceExtent extent = ExtentOfSequence(tokens, 64, 256);
    EXPECT_EQ(extent.num_code_pages, pages) << tokens;
    EXPECT_EQ(extent.num_rows, rows) << tokens;
  }
}

TEST(DecodePlan, EqualBatchesAreComplete) {
  for (const int tokens : {0, 1, 100, 385, 8192, 102400}) {
    for (const int batch : {1, 2, 3, 4, 8, 16, 17, 32, 33, 64}) {
      for (const int ctas : {1, 78, 132}) {
        const std::vector<SequenceExtent> sequences(batch, ExtentOfSequence(tokens, 64, 256));
        ExpectComplete(sequences, Options(8, ctas), PlanDecode(sequences, Options(8, ctas)));
      }
    }
  }
}

TEST(DecodePlan, RaggedBatchesAreComplete) {
  std::mt19937_64 rng(testing::TestSeed(3));
  for (int round = 0; round < 300; ++round) {
    std::vector<SequenceExtent> sequences;
    const int batch = 1 + static_cast<int>(rng() % 70);
    const int longest = 1 << (rng() % 18);
    for (int i = 0; i < batch; ++i)
      sequences.push_back(ExtentOfSequence(static_cast<int>(rng() % (longest + 1)), 64, 256));
    DecodePlanOptions options = Options(1 + static_cast<int>(rng() % 8), 1 + static_cast<int>(rng() % 140));
    options.tail_from_bytes = rng() % 2 ? 0 : options.tail_from_bytes;
    ExpectComplete(sequences, options, PlanDecode(sequences, options));
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST(DecodePlan, LongRunsOfRowsAreSharedOut) {
  for (const int batch : {1, 3, 5, 16}) {
    std::vector<SequenceExtent> sequences(batch, SequenceExtent{0, 102400});
    sequences.push_back({100, 384});
    const DecodePlan plan = PlanDecode(sequences, Options(8, 132));
    ExpectComplete(sequences, Options(8, 132), plan);
    for (const DecodeItem& item : plan.items) EXPECT_LE(BytesOf(item), plan.bytes / 132 * 3 / 2) << batch;
  }
}

TEST(DecodePlan, StaticSharesAreNearlyEqualInBytes) {
  for (const int batch : {5, 12, 16, 17, 32, 64}) {
    const std::vector<SequenceExtent> sequences(batch, ExtentOfSequence(102400, 64, 256));
    DecodePlanOptions options = Options(8, 132);
    options.tail_share = 0.1;
    const DecodePlan plan = PlanDecode(sequences, options);
    int64_t least = INT64_MAX, most = 0, largest_tail = 0, tail = 0;
    for (const DecodeStart& start : plan.starts) {
      int64_t bytes = start.has_first ? BytesOf(start.first) : 0;
      for (int i = start.next; i < start.end; ++i) bytes += BytesOf(plan.items[i]);
      least = std::min(least, bytes);
      most = std::max(most, bytes);
    }
    for (int i = plan.tail_first; i < plan.tail_end; ++i) {
      tail += BytesOf(plan.items[i]);
      largest_tail = std::max(largest_tail, BytesOf(plan.items[i]));
    }
    // One unit is 8 KB and the tail evens the rest out.
    EXPECT_LE(most - least, 400'000) << batch;
    EXPECT_NEAR(static_cast<double>(tail) / plan.bytes, 0.1, 0.02) << batch;
    EXPECT_LE(largest_tail, std::max<int64_t>(32 * 4608, plan.bytes / 10 / (6 * 132)) + 150'000) << batch;
  }
}

}  // namespace
}  // namespace oscar::kernels::cuda
