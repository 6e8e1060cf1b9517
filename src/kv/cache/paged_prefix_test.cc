// Prefixes of a PagedKvCache against the shadow: a sequence that was resumed, parked or read from a file has the bytes and the
// attention of one that computed all its tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include "src/kv/cache/paged_kv_cache_fixture.h"
#include "src/testing/seeds.h"
#include "src/testing/temporary_folder.h"

namespace oscar::cache {
namespace {

std::vector<int32_t> Ids(const std::vector<uint64_t>& tokens) { return {tokens.begin(), tokens.end()}; }

SequenceId ResumeOf(ShadowedCache& cache, const std::vector<uint64_t>& tokens, const char* space = "") {
  Result<SequenceId> id = cache->prefixes()->Resume(space, Ids(tokens));
  EXPECT_TRUE(id.ok()) << id.status().message();
  cache.tokens(*id).assign(tokens.begin(), tokens.begin() + cache->length(*id));
  return *id;
}
void Publish(ShadowedCache& cache, SequenceId id, const char* space = "") {
  ASSERT_TRUE(cache->prefixes()->Publish(id, space, Ids(cache.tokens(id)), PrefixRetention::kNormal).ok());
}
void Release(ShadowedCache& cache, SequenceId id) {
  ASSERT_TRUE(cache->Release(id).ok());
  cache.Forget(id);
}

TEST(PagedPrefix, AResumedSequenceEqualsOneThatComputedAll) {
  for (const bool bf16 : {false, true}) {
    ShadowedCache cache(TestConfig(), bf16);
    const SequenceId first = cache.New();
    cache.Step(first, cache.FreshTokens(700));
    Publish(cache, first);
    const std::vector<uint64_t> tokens = cache.tokens(first);
    cache.Step(first, cache.FreshTokens(90), 30);  // goes on: the shared last page is copied
    Release(cache, first);
    cache.ExpectInvariants();
    std::vector<uint64_t> wanted = tokens;
    const std::vector<uint64_t> more = cache.FreshTokens(40);
    wanted.insert(wanted.end(), more.begin(), more.end());
    const SequenceId second = ResumeOf(cache, wanted);
    EXPECT_EQ(cache->length(second), 700);
    cache.ExpectState(second);
    cache.Step(second, more, 7);
    cache.Step(second, cache.FreshTokens(200), 50);
    cache.ExpectState(second);
    // In the middle of the last page of what was kept.
    const SequenceId third = ResumeOf(cache, {tokens.begin(), tokens.begin() + 690});
    EXPECT_EQ(cache->length(third), 690);
    cache.Step(third, cache.FreshTokens(130), 40);
    cache.ExpectState(third);
    cache.ExpectState(second);
    cache.ExpectInvariants();
  }
}

TEST(PagedPrefix, PrefixesGiveWaySoThatAFullCacheRefusesNobody) {
  KvCacheConfig config = TestConfig();
  config.max_tokens = 1024;
  config.max_sequences = 1;
  config.max_step_tokens = 128;
  config.prefix_pages = 4;
  ShadowedCache cache(config);
  for (int round = 0; round < 12; ++round) {
    const SequenceId id = cache.New();
    for (int step = 0; step < 8; ++step) cache.Step(id, cache.FreshTokens(128), step == 7 ? 64 : 0);
    cache.ExpectState(id);
    Publish(cache, id);
    Release(cache, id);
    cache.ExpectInvariants();
  }
  EXPECT_GT(cache->prefix_stats().evicted_tokens, 0u);
  EXPECT_GE(cache->prefix_stats().resume_points, 1);
}

TEST(PagedPrefix, AClearForgetsAndWhatBeganBeforeItPublishesNothing) {
  ShadowedCache cache(TestConfig());
  const SequenceId id = cache.New();
  cache.Step(id, cache.FreshTokens(500));
  Publish(cache, id);
  cache->prefixes()->Clear();
  EXPECT_EQ(cache->prefixes()->Match("", Ids(cache.tokens(id))).matched, 0);
  Publish(cache, id);
  EXPECT_EQ(cache->prefixes()->Match("", Ids(cache.tokens(id))).matched, 0);
  cache.ExpectState(id);
  cache.ExpectInvariants();
  EXPECT_EQ(cache->prefixes()->Publish(id, "", std::vector<int32_t>{1, 2}, PrefixRetention::kNormal).code(), StatusCode::kInvalidArgument);
}

TEST(PagedPrefix, AParkedSequenceComesBackAsItWas) {
  ShadowedCache cache(TestConfig());
  const SequenceId id = cache.New();
  cache.Step(id, cache.FreshTokens(400));
  Publish(cache, id);  // some pages are shared, some its own
  cache.Step(id, cache.FreshTokens(333));
  const std::vector<uint64_t> tokens = cache.tokens(id);
  const int used = cache->stats().encoded_pages_used;
  auto parked = cache->prefixes()->Park(id);
  ASSERT_TRUE(parked.ok()) << parked.status().message();
  cache.Forget(id);
  cache.ExpectInvariants();
  EXPECT_LT(cache->stats().encoded_pages_used, used);
  EXPECT_EQ((*parked)->length(), 733);
  EXPECT_GT((*parked)->host_bytes(), 0u);
  const SequenceId other = cache.New();  // writes over the pages that became free
  cache.Step(other, cache.FreshTokens(900));
  const Result<SequenceId> back = cache->prefixes()->Unpark(**parked);
  ASSERT_TRUE(back.ok()) << back.status().message();
  parked->reset();
  cache.tokens(*back) = tokens;
  cache.ExpectState(*back);
  cache.Step(*back, cache.FreshTokens(150), 30);
  cache.ExpectState(*back);
  cache.ExpectInvariants();
}

class KvFileTest : public ::testing::Test {
 protected:
  KvFileTest() : path_(folder_.path() / "a.oscarkv") {
    const SequenceId id = cache_.New();
    cache_.Step(id, cache_.FreshTokens(650));
    Publish(cache_, id, "a space");
    cache_.Step(id, cache_.FreshTokens(77));
    Publish(cache_, id, "a space");
    tokens_ = cache_.tokens(id);
    const SequenceId other = cache_.New();
    cache_.Step(other, cache_.FreshTokens(100));
    Publish(cache_, other);
    EXPECT_TRUE(cache_->Save(path_, "model").ok());
  }
  Status Restored(const std::filesystem::path& path) { return ShadowedCache(TestConfig())->Restore(path, "model").status(); }

  testing::TemporaryFolder folder_;
  const std::filesystem::path path_;
  ShadowedCache cache_{TestConfig()};
  std::vector<uint64_t> tokens_;
};

TEST_F(KvFileTest, AnotherCacheGoesOnFromAFile) {
  ShadowedCache fresh(TestConfig());
  const Result<int> points = fresh->Restore(path_, "model");
  ASSERT_TRUE(points.ok()) << points.status().message();
  EXPECT_EQ(*points, 3);
  fresh.ExpectInvariants();
  EXPECT_EQ(fresh->prefixes()->Match("", Ids(tokens_)).matched, 0);
  const SequenceId id = ResumeOf(fresh, tokens_, "a space");
  EXPECT_EQ(fresh->length(id), 727);
  fresh.ExpectState(id);
  fresh.Step(id, fresh.FreshTokens(99), 20);
  fresh.ExpectState(id);
  // Again, onto what is there: nothing is held twice.
  const int used = fresh->stats().encoded_pages_used;
  ASSERT_TRUE(fresh->Restore(path_, "model").ok());
  EXPECT_EQ(fresh->stats().encoded_pages_used, used);
  fresh.ExpectInvariants();
}

TEST_F(KvFileTest, ACopyWritesTheSameFileAfterItsCacheHasGoneOn) {
  const auto bytes_of = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  auto copy = cache_->Copy("model");
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  EXPECT_EQ((*copy)->resume_points(), 3);
  EXPECT_GT((*copy)->bytes(), 0u);
  cache_->Clear();
  const SequenceId id = cache_.New();
  cache_.Step(id, cache_.FreshTokens(900));
  const std::filesystem::path later = folder_.path() / "b.oscarkv";
  ASSERT_TRUE((*copy)->Save(later).ok());
  EXPECT_EQ(bytes_of(later), bytes_of(path_));
}

TEST_F(KvFileTest, ASmallCacheTakesWhatFits) {
  KvCacheConfig config = TestConfig();
  config.max_tokens = 512;
  ShadowedCache small(config);
  const Result<int> points = small->Restore(path_, "model");
  ASSERT_TRUE(points.ok()) << points.status().message();
  EXPECT_LT(*points, 3);
  small.ExpectInvariants();
}

TEST_F(KvFileTest, OtherModelsMethodsAndWindowsAreRefused) {
  EXPECT_EQ(ShadowedCache(TestConfig())->Restore(path_, "another").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ShadowedCache(TestConfig(64, 192))->Restore(path_, "model").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(ShadowedCache(TestConfig(), true)->Restore(path_, "model").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Restored(folder_.path() / "none").code(), StatusCode::kNotFound);
}

TEST_F(KvFileTest, EveryFlippedBitAndEveryCutIsFound) {
  std::ifstream file(path_, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::filesystem::path broken = folder_.path() / "broken";
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(broken, std::ios::binary) << bytes;
    return Restored(broken).code() == StatusCode::kCorruptData;
  };
  std::mt19937_64 rng(testing::TestSeed(7));
  for (int i = 0; i < 120; ++i) {
    std::string bytes = whole;
    const size_t at = i < 80 ? static_cast<size_t>(i) : rng() % whole.size();
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (rng() % 8)));
    EXPECT_TRUE(refused(bytes)) << "byte " << at;
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{43}, size_t{44}, whole.size() / 2, whole.size() - 33, whole.size() - 1}) {
    EXPECT_TRUE(refused(whole.substr(0, size))) << size;
  }
  EXPECT_TRUE(refused(whole + "x"));
}

// Conversations over few stems in a cache that is too small for them, with parks, flushes and files between.
class PrefixWalk {
 public:
  PrefixWalk(uint64_t seed, bool bf16) : rng_(seed), cache_(Config(), bf16) {
    for (int stem = 0; stem < 3; ++stem) stems_.push_back(cache_.FreshTokens(600));
  }
  ~PrefixWalk() { parked_.clear(); }

  void Operate() {
    const int operation = Draw(20);
    if (operation < 4 || cache_.sequences().empty()) return Begin();
    const SequenceId id = Pick();
    if (operation < 7) return End(id);
    if (operation < 9) return Publish(cache_, id);
    if (operation == 9) return Park(id);
    if (operation == 10) return Unpark();
    if (operation == 11 && Draw(10) == 0) return cache_->Clear();
    Step(id);
  }
  void Expect() {
    cache_.ExpectInvariants();
    if (!cache_.sequences().empty() && Draw(3) == 0) cache_.ExpectState(Pick());
  }

 private:
  static KvCacheConfig Config() {
    KvCacheConfig config = TestConfig();
    config.max_tokens = 1200;
    config.max_sequences = 4;
    config.max_step_tokens = 256;
    config.prefix_pages = 6;
    return config;
  }
  int Draw(int limit) { return static_cast<int>(rng_() % static_cast<uint64_t>(limit)); }
  SequenceId Pick() {
    auto it = cache_.sequences().begin();
    std::advance(it, Draw(static_cast<int>(cache_.sequences().size())));
    return it->first;
  }
  void Begin() {
    if (cache_.sequences().size() >= 4) return End(Pick());
    const std::vector<uint64_t>& stem = stems_[static_cast<size_t>(Draw(3))];
    const int length = 64 * (1 + Draw(9)) - Draw(2) * Draw(64);
    const SequenceId id = ResumeOf(cache_, {stem.begin(), stem.begin() + length});
    goals_[id] = std::vector<uint64_t>(stem.begin(), stem.begin() + length);
  }
  void Step(SequenceId id) {
    std::vector<uint64_t>& tokens = cache_.tokens(id);
    const std::vector<uint64_t>& goal = goals_[id];
    const auto have = static_cast<int>(tokens.size());
    std::vector<uint64_t> step;
    if (tokens.size() < goal.size()) {
      step.assign(goal.begin() + have, goal.begin() + std::min<int>(have + 1 + Draw(250), static_cast<int>(goal.size())));
    } else {
      step = cache_.FreshTokens(1 + Draw(60));
    }
    const Status reserved = cache_->Reserve(id, static_cast<int>(step.size()));
    cache_->Abandon(id);
    if (!reserved.ok()) {
      ASSERT_EQ(reserved.code(), StatusCode::kResourceExhausted);
      return End(id);
    }
    cache_.Step(id, step, Draw(4) == 0 ? 37 : 0);
  }
  void End(SequenceId id) {
    Publish(cache_, id);
    goals_.erase(id);
    Release(cache_, id);
  }
  void Park(SequenceId id) {
    auto parked = cache_->Park(id);
    ASSERT_TRUE(parked.ok());
    parked_.push_back({*std::move(parked), cache_.tokens(id), goals_[id]});
    cache_.Forget(id);
    goals_.erase(id);
  }
  void Unpark() {
    if (parked_.empty()) return;
    const Result<SequenceId> id = cache_->Unpark(*parked_.back().pages);
    if (!id.ok()) {
      ASSERT_EQ(id.status().code(), StatusCode::kResourceExhausted);
      if (Draw(2) == 0) parked_.pop_back();
      return;
    }
    cache_.tokens(*id) = parked_.back().tokens;
    goals_[*id] = parked_.back().goal;
    parked_.pop_back();
    cache_.ExpectState(*id);
  }

  struct Parked {
    std::unique_ptr<ParkedSequence> pages;
    std::vector<uint64_t> tokens, goal;
  };
  std::mt19937_64 rng_;
  ShadowedCache cache_;
  std::vector<std::vector<uint64_t>> stems_;
  std::map<SequenceId, std::vector<uint64_t>> goals_;
  std::vector<Parked> parked_;
};

TEST(PagedPrefixWalk, WhateverIsSharedParkedAndGivenUpEverySequenceEqualsItsShadow) {
  const uint64_t seed = testing::TestSeed(41);
  for (uint64_t walk = 0; walk < 8; ++walk) {
    PrefixWalk random(seed + walk, walk % 4 == 3);
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
      random.Operate();
      random.Expect();
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed + walk;
  }
}

}  // namespace
}  // namespace oscar::cache
