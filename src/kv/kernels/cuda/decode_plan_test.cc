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

int64_t BytesOf(const DecodeItem& item) {
  return item.num_pages * int64_t{4608} + item.num_tiles * int64_t{8192};
}

// Every unit of every pair is in exactly one item, every item is run once, slots are right.
void ExpectComplete(const std::vector<SequenceExtent>& sequences, const DecodePlanOptions& options,
                    const DecodePlan& plan) {
  ASSERT_EQ(plan.starts.size(), static_cast<size_t>(options.num_ctas));
  std::map<int, DecodeItem> run;  // by slot
  auto add = [&](const DecodeItem& item) {
    EXPECT_TRUE(run.emplace(item.slot, item).second) << "slot " << item.slot;
  };
  for (const DecodeStart& start : plan.starts) {
    if (start.has_first) add(start.first);
    for (int i = start.next; i < start.end; ++i) add(plan.items[i]);
    EXPECT_TRUE(start.has_first || start.next == start.end);
  }
  std::map<std::tuple<int, int, int>, std::vector<std::pair<int, int>>> parts;
  std::map<std::pair<int, int>, int> slots_of_pair;
  for (const auto& [slot, item] : run) {
    EXPECT_LT(slot, plan.num_slots);
    EXPECT_GE(slot, item.pair_first_slot);
    EXPECT_LT(slot, item.pair_first_slot + item.pair_num_slots);
    EXPECT_EQ(run[item.pair_first_slot].sequence, item.sequence);
    EXPECT_EQ(run[item.pair_first_slot].head, item.head);
    ++slots_of_pair[{item.sequence, item.head}];
    parts[{item.sequence, item.head, 0}].emplace_back(item.first_page, item.num_pages);
    parts[{item.sequence, item.head, 1}].emplace_back(item.first_tile, item.num_tiles);
    EXPECT_EQ(item.num_rows, sequences[item.sequence].num_rows);
  }
  for (const auto& [slot, item] : run) {
    EXPECT_EQ(item.pair_num_slots, (slots_of_pair[{item.sequence, item.head}]));
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
          EXPECT_GE(count, 0);
          next += count;
        }
        EXPECT_EQ(next, kind == 0 ? sequences[sequence].num_code_pages
                                  : (sequences[sequence].num_rows + 15) / 16);
      }
    }
  }
}

TEST(DecodePlan, TheTierRuleSplitsASequence) {
  for (const auto& [tokens, pages, rows] : {std::tuple{0, 0, 0},
                                            {1, 0, 1},
                                            {384, 0, 384},
                                            {385, 1, 321},
                                            {448, 1, 384},
                                            {102400, 1594, 384}}) {
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
    DecodePlanOptions options =
        Options(1 + static_cast<int>(rng() % 8), 1 + static_cast<int>(rng() % 140));
    options.whole_splits_below_bytes = rng() % 2 ? 0 : options.whole_splits_below_bytes;
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
    for (const DecodeItem& item : plan.items)
      EXPECT_LE(BytesOf(item), plan.bytes / 132 * 3 / 2) << batch;
  }
}

TEST(DecodePlan, SharesAreNearlyEqualInBytesAndItems) {
  for (const int batch : {1, 4, 5, 12, 16, 17, 32, 64}) {
    const std::vector<SequenceExtent> sequences(batch, ExtentOfSequence(102400, 64, 256));
    DecodePlanOptions options = Options(8, 132);
    options.whole_splits_below_bytes = 0;
    const DecodePlan plan = PlanDecode(sequences, options);
    int64_t least = INT64_MAX, most = 0;
    for (const DecodeStart& start : plan.starts) {
      int64_t length = 0;
      if (start.has_first) length += BytesOf(start.first) + kItemBytes;
      for (int i = start.next; i < start.end; ++i) length += BytesOf(plan.items[i]) + kItemBytes;
      least = std::min(least, length);
      most = std::max(most, length);
    }
    // A window (24 tiles of 8 KB) goes to one side of a cut, and a CTA in the middle of a pair has
    // an item's cost more.
    EXPECT_LE(most - least, 2 * 24 * 8192 + 2 * kItemBytes) << batch;
  }
}

TEST(DecodePlan, EqualFewSequencesGetOneItemPerCta) {
  const std::vector<SequenceExtent> sequences(4, ExtentOfSequence(102400, 64, 256));
  const DecodePlan plan = PlanDecode(sequences, Options(8, 132));
  int ctas = 0;
  for (const DecodeStart& start : plan.starts) {
    EXPECT_EQ(start.next, start.end);
    ctas += start.has_first;
  }
  EXPECT_EQ(ctas, 128);
}

// Returns whether every pair has CTAs of its own.
bool ExpectSpaces(const std::vector<SequenceExtent>& sequences, const DecodePlanOptions& options) {
  const DecodePlan plan = PlanSpaces(sequences, options);
  const int count = static_cast<int>(sequences.size());
  std::vector<SequenceExtent> halves;
  for (const SequenceExtent& extent : sequences) halves.push_back({extent.num_code_pages, 0});
  for (const SequenceExtent& extent : sequences) halves.push_back({0, extent.num_rows});
  ExpectComplete(halves, options, plan);
  std::map<std::pair<int, int>, std::pair<int, int>> slots;  // of (sequence, head): first, count
  for (const DecodeItem& item : plan.items) {
    if (item.pair_num_slots > 0) slots[{item.sequence, item.head}] = {item.pair_first_slot, item.pair_num_slots};
  }
  EXPECT_EQ(slots.size(), static_cast<size_t>(2 * count * options.kv_heads));
  bool is_own = true;
  const auto check = [&](const DecodeItem& item) {
    EXPECT_EQ((std::pair(item.sibling_first_slot, item.sibling_num_slots)), (slots[{(item.sequence + count) % (2 * count), item.head}]));
  };
  for (const DecodeItem& item : plan.items) {
    if (item.pair_num_slots > 0) check(item);
  }
  for (const DecodeStart& start : plan.starts) {
    if (start.has_first != 0) check(start.first);
    is_own &= start.next == start.end;
  }
  return is_own;
}

TEST(DecodePlan, SpacesAreWholeAndKnowTheirSiblings) {
  // Short, long and longest contexts at batch 1: CTAs of their own. Few rows beside many pages at batch 4: CTAs have both.
  EXPECT_TRUE(ExpectSpaces({{10, 384}}, Options(8, 132)));
  EXPECT_TRUE(ExpectSpaces({{1594, 384}}, Options(8, 132)));
  EXPECT_TRUE(ExpectSpaces({{10, 384}, {11, 321}, {10, 321}, {10, 321}}, Options(8, 132)));
  EXPECT_FALSE(ExpectSpaces({{1594, 384}, {1594, 384}, {1594, 384}, {1594, 384}}, Options(8, 132)));
  ExpectSpaces({{900, 321}, {1, 321}}, Options(8, 132));
  EXPECT_FALSE(ExpectSpaces({{900, 64}, {0, 1}, {17, 321}}, Options(3, 31)));
  std::mt19937_64 rng(testing::TestSeed(14));
  for (int round = 0; round < 300; ++round) {
    std::vector<SequenceExtent> sequences(1 + rng() % 9);
    for (SequenceExtent& extent : sequences)
      extent = {static_cast<int>(rng() % (round % 2 == 0 ? 20 : 2000)), 1 + static_cast<int>(rng() % 384)};
    ExpectSpaces(sequences, Options(1 + static_cast<int>(rng() % 8), 1 + static_cast<int>(rng() % 200)));
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST(DecodePlan, FixedItemsOfASequenceAreThoseItHasAlone) {
  std::mt19937_64 rng(testing::TestSeed(15));
  for (int round = 0; round < 100; ++round) {
    std::vector<SequenceExtent> sequences(1 + rng() % 9);
    for (SequenceExtent& extent : sequences) extent = {static_cast<int>(rng() % 2000), 1 + static_cast<int>(rng() % (round % 3 == 0 ? 9000 : 384))};
    const DecodePlanOptions options = Options(1 + static_cast<int>(rng() % 8), 1 + static_cast<int>(rng() % 200));
    for (const bool has_spaces : {false, true}) {
      const DecodePlan plan = PlanFixed(sequences, options, has_spaces);
      const int count = static_cast<int>(sequences.size());
      std::vector<SequenceExtent> halves = sequences;
      if (has_spaces) {
        for (SequenceExtent& extent : halves) extent.num_rows = 0;
        for (const SequenceExtent& extent : sequences) halves.push_back({0, extent.num_rows});
      }
      ExpectComplete(halves, options, plan);
      // (first page, pages, first tile, tiles) of a pair's items in the order in which they are merged.
      const auto parts_of = [](const DecodePlan& of, int sequence) {
        std::vector<std::tuple<int, int, int, int, int, int>> parts;
        for (const DecodeItem& item : of.items) {
          if (item.sequence == sequence) parts.emplace_back(item.head, item.first_page, item.num_pages, item.first_tile, item.num_tiles, item.slot - item.pair_first_slot);
        }
        return parts;
      };
      for (int i = 0; i < count; ++i) {
        const DecodePlan alone = PlanFixed(std::span(sequences).subspan(static_cast<size_t>(i), 1), Options(options.kv_heads, 132), has_spaces);
        EXPECT_EQ(parts_of(plan, i), parts_of(alone, 0));
        EXPECT_TRUE(!has_spaces || parts_of(plan, count + i) == parts_of(alone, 1));
      }
    }
    if (HasFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace oscar::kernels::cuda
