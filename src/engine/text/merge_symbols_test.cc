#include "src/engine/text/merge_symbols.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

using Merges = std::map<std::pair<int32_t, int32_t>, Merge>;

// The definition: look at all neighbours, merge the best, begin again.
std::vector<int32_t> MergeSlowly(std::vector<int32_t> ids, const Merges& merges) {
  while (true) {
    size_t best = ids.size();
    uint32_t best_rank = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = merges.find({ids[i], ids[i + 1]});
      if (it == merges.end() || (best < ids.size() && it->second.rank >= best_rank)) continue;
      best = i;
      best_rank = it->second.rank;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).id;
    ids.erase(ids.begin() + static_cast<long>(best) + 1);
  }
}

TEST(MergeSymbols, AgreesWithTheDefinitionOnRandomMerges) {
  const uint64_t seed = testing::TestSeed(5);
  std::mt19937_64 rng(seed);
  SymbolMerger merger;
  for (int round = 0; round < 3000; ++round) {
    Merges merges;
    int32_t num_tokens = 3;
    for (uint32_t rank = 0; rank < 20; ++rank) {
      const auto left = static_cast<int32_t>(rng() % static_cast<uint64_t>(num_tokens));
      const auto right = static_cast<int32_t>(rng() % static_cast<uint64_t>(num_tokens));
      // Equal ranks too, as equal scores of SentencePiece give them.
      if (merges.emplace(std::pair(left, right), Merge{rank / 2, num_tokens}).second) ++num_tokens;
    }
    std::vector<int32_t> ids;
    const uint64_t size = rng() % 30;
    for (uint64_t i = 0; i < size; ++i) ids.push_back(static_cast<int32_t>(rng() % 3));
    merger.Clear();
    for (const int32_t id : ids) merger.Add(id, 1);
    merger.Run([&merges](const Symbol& left, const Symbol& right) -> std::optional<Merge> {
      const auto it = merges.find({left.id, right.id});
      return it == merges.end() ? std::nullopt : std::optional(it->second);
    });
    std::vector<int32_t> merged;
    uint32_t begin = 0;
    merger.ForEach([&](const Symbol& symbol) {
      merged.push_back(symbol.id);
      EXPECT_EQ(symbol.begin, begin);
      begin += symbol.size;
    });
    EXPECT_EQ(begin, ids.size());
    ASSERT_EQ(merged, MergeSlowly(ids, merges)) << "seed " << seed << " round " << round;
  }
}

}  // namespace
}  // namespace oscar::engine
