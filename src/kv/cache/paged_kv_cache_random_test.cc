// Random walks over the cache (method.md 11, tests 16 to 20 and 28): whatever the chunks, drafts, forks, truncations,
// releases and failures, every sequence equals its shadow and the pools balance after every operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "src/kv/cache/paged_kv_cache_fixture.h"
#include "src/testing/seeds.h"

namespace oscar::cache {
namespace {

// How often a walk looks at values; the invariants are checked after each operation in any case.
struct WalkRates {
  int attend_one_in = 1;  // steps whose attention is compared
  int state_one_in = 1;   // operations after which one sequence is compared byte for byte
};

class RandomWalk {
 public:
  RandomWalk(uint64_t seed, const KvCacheConfig& config, bool bf16, WalkRates rates)
      : rng_(seed), cache_(config, bf16), rates_(rates) {}

  void Operate() {
    const int operation = Draw(24);
    if (cache_.sequences().empty() || operation == 0) return Create();
    const SequenceId id = Pick();
    if (operation == 1) return Release(id);
    if (operation == 2) return Fork(id);
    if (operation == 3) return Truncate(id);
    Step(id, operation);
  }
  void ExpectAll() {
    cache_.ExpectInvariants();
    if (!cache_.sequences().empty() && Draw(rates_.state_one_in) == 0) cache_.ExpectState(Pick());
  }
  void ReleaseAll() {
    while (!cache_.sequences().empty()) Release(cache_.sequences().begin()->first);
    cache_.ExpectInvariants();
    EXPECT_EQ(cache_->stats().used_bytes(), 0u);
  }
  int num_refused() const { return num_refused_; }

 private:
  int Draw(int limit) { return static_cast<int>(rng_() % static_cast<uint64_t>(limit)); }
  SequenceId Pick() {
    auto it = cache_.sequences().begin();
    std::advance(it, Draw(static_cast<int>(cache_.sequences().size())));
    return it->first;
  }
  void Create() {
    const Result<SequenceId> id = cache_->NewSequence();
    if (id.ok()) cache_.tokens(*id) = {};
  }
  void Release(SequenceId id) {
    ASSERT_TRUE(cache_->Release(id).ok());
    cache_.Forget(id);
  }
  void Fork(SequenceId id) {
    const Result<SequenceId> child = cache_->Fork(id);
    if (child.ok()) {
      cache_.tokens(*child) = cache_.tokens(id);
    } else {
      ASSERT_EQ(child.status().code(), StatusCode::kResourceExhausted);
      ++num_refused_;
    }
  }
  void Truncate(SequenceId id) {
    std::vector<uint64_t>& tokens = cache_.tokens(id);
    const auto length = static_cast<int>(tokens.size());
    const int target = std::max(0, length - (Draw(3) == 0 ? Draw(length + 1) : Draw(70)));
    const Result<int> reached = cache_->Truncate(id, target);
    ASSERT_TRUE(reached.ok());
    ASSERT_TRUE(*reached == target || *reached == std::min(target, cache_->config().sink));
    tokens.resize(static_cast<std::size_t>(*reached));
  }
  void Step(SequenceId id, int operation) {
    constexpr int kSizes[] = {1, 1, 1, 2, 7, 16, 63, 64, 65, 100, 200};
    const std::vector<uint64_t> step = cache_.FreshTokens(kSizes[Draw(11)]);
    const auto count = static_cast<int>(step.size());
    const Status reserved = cache_->Reserve(id, count);
    if (!reserved.ok()) {
      ASSERT_EQ(reserved.code(), StatusCode::kResourceExhausted) << reserved.message();
      ++num_refused_;
      return;
    }
    cache_.ExpectInvariants();
    const int failing_layer = operation == 4 ? Draw(kTestShape.num_layers) : -1;
    for (int layer = 0; layer < kTestShape.num_layers; ++layer) {
      if (layer == failing_layer) {
        FailAppend(id, layer, step);
        cache_->Abandon(id);
        return;
      }
      const Status appended = cache_.AppendLayer(id, layer, step);
      ASSERT_TRUE(appended.ok()) << appended.message();
      if (Draw(rates_.attend_one_in) == 0) cache_.ExpectAttention(id, layer, step, 1 + Draw(64));
    }
    const int kept = operation == 5 ? Draw(count + 1) : count;
    ASSERT_TRUE(cache_->Commit(id, kept).ok());
    std::vector<uint64_t>& tokens = cache_.tokens(id);
    tokens.insert(tokens.end(), step.begin(), step.begin() + kept);
  }
  void FailAppend(SequenceId id, int layer, const std::vector<uint64_t>& step) {
    const auto count = static_cast<int>(step.size());
    std::vector<float> keys = ShadowRows(step, layer, 1, 0, 4);
    const std::vector<float> values = ShadowRows(step, layer, 1, 1, 4);
    keys[static_cast<std::size_t>(Draw(count * 4))] = std::numeric_limits<float>::infinity();
    const Status status = cache_->Append(id, layer, PackedRows<const float>(keys.data(), count, 1, 4),
                                         PackedRows<const float>(values.data(), count, 1, 4));
    ASSERT_EQ(status.code(), StatusCode::kNonFinite);
  }

  std::mt19937_64 rng_;
  ShadowedCache cache_;
  WalkRates rates_;
  int num_refused_ = 0;
};

struct Walk {
  int sink, recent;
  bool bf16;
  int64_t max_tokens;  // few, so that the pools fill
};

void RunWalks(int operations_per_walk, WalkRates rates, uint64_t seed) {
  int refused = 0;
  for (const Walk& walk : {Walk{64, 128, false, 1500}, Walk{0, 0, false, 900}, Walk{64, 0, false, 900},
                           Walk{0, 64, false, 900}, Walk{64, 128, true, 1200}}) {
    KvCacheConfig config = TestConfig(walk.sink, walk.recent);
    config.max_tokens = walk.max_tokens;
    config.max_step_tokens = 200;
    RandomWalk random_walk(seed, config, walk.bf16, rates);
    for (int i = 0; i < operations_per_walk; ++i) {
      random_walk.Operate();
      random_walk.ExpectAll();
      ASSERT_FALSE(::testing::Test::HasFatalFailure())
          << "operation " << i << ", sink " << walk.sink << ", recent " << walk.recent << ", OSCAR_TEST_SEED=" << seed;
    }
    random_walk.ReleaseAll();
    refused += random_walk.num_refused();
  }
  EXPECT_GT(refused, operations_per_walk / 100);  // full pools are part of the walk
}

TEST(PagedKvCacheRandom, EverySequenceEqualsItsShadowInValuesAndBytes) {
  RunWalks(/*operations_per_walk=*/500, {1, 1}, testing::TestSeed(16));
}

TEST(PagedKvCacheRandom, ThePoolsBalanceAfterEachOfAHundredThousandOperations) {
  RunWalks(/*operations_per_walk=*/20'000, {100, 40}, testing::TestSeed(17));
}

}  // namespace
}  // namespace oscar::cache
