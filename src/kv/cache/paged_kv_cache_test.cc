#include "src/kv/cache/paged_kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "src/kv/cache/paged_kv_cache_fixture.h"

namespace oscar::cache {
namespace {

bool SameSnapshot(const pool::CacheSnapshot& a, const pool::CacheSnapshot& b) {
  const auto same_pool = [](const pool::PoolSnapshot& x, const pool::PoolSnapshot& y) { return x.owners == y.owners; };
  const auto same_sequence = [](const pool::SequenceSnapshot& x, const pool::SequenceSnapshot& y) {
    return x.id == y.id && x.length == y.length && x.step_tokens == y.step_tokens && x.bf16_table == y.bf16_table &&
           x.encoded_table == y.encoded_table;
  };
  return same_pool(a.bf16, b.bf16) && same_pool(a.encoded, b.encoded) &&
         std::equal(a.sequences.begin(), a.sequences.end(), b.sequences.begin(), b.sequences.end(), same_sequence);
}

TEST(PagedKvCache, ChunkSizeChangesNeitherTiersNorBytesNorAttention) {
  const int sink = 64, recent = 128;
  std::vector<int> lengths = {
      1, sink - 1, sink, sink + 1, sink + recent - 1, sink + recent, sink + recent + 1, sink + recent + 64};
  for (int edge = 64; edge <= 512; edge += 64) {
    for (const int length : {edge - 1, edge, edge + 1}) lengths.push_back(length);
  }
  for (const int length : lengths) {
    for (const int chunk : {1, 7, 64, 100, 512, 1024}) {
      ShadowedCache cache(TestConfig(sink, recent));
      const SequenceId id = cache.New();
      const std::vector<uint64_t> prompt = cache.FreshTokens(length);
      for (int begin = 0; begin < length; begin += chunk) {
        const int end = std::min(length, begin + chunk);
        // Every query is checked where that is quick; long prompts check a sample.
        cache.Step(id, {prompt.begin() + begin, prompt.begin() + end}, length <= 70 ? 1 : 61);
        if (::testing::Test::HasFatalFailure()) return;
      }
      cache.ExpectState(id);
      cache.ExpectInvariants();
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "length " << length << " chunk " << chunk;
    }
  }
}

TEST(PagedKvCache, WindowsOfZeroAreLegal) {
  for (const auto& [sink, recent] : {std::pair{0, 0}, std::pair{64, 0}, std::pair{0, 64}}) {
    ShadowedCache cache(TestConfig(sink, recent));
    const SequenceId id = cache.New();
    for (const int chunk : {1, 63, 1, 64, 65, 130, 1, 1}) {
      cache.Step(id, cache.FreshTokens(chunk), 7);
      cache.ExpectState(id);
      cache.ExpectInvariants();
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "sink " << sink << " recent " << recent;
    }
  }
}

TEST(PagedKvCache, Bf16KeepsEveryPageAndHasNoEncodedOnes) {
  ShadowedCache cache(TestConfig(), /*bf16=*/true);
  const SequenceId id = cache.New();
  for (int i = 0; i < 6; ++i) cache.Step(id, cache.FreshTokens(100), 33);
  cache.ExpectState(id);
  cache.ExpectInvariants();
  EXPECT_EQ(cache->stats().bf16_pages_used, 10);
  EXPECT_EQ(cache->stats().encoded_pages_total, 0);
  EXPECT_EQ(cache->segments(id).body, 0);
  EXPECT_EQ(cache->segments(id).recent, 600 - 64);
  // Any length can be resumed.
  EXPECT_EQ(*cache->Truncate(id, 333), 333);
}

TEST(PagedKvCache, ACacheTooShortForAnEncodedPageWorksWithoutOne) {
  KvCacheConfig config = TestConfig();
  config.max_tokens = 67;
  config.max_step_tokens = 67;
  ShadowedCache cache(config);
  const SequenceId id = cache.New();
  cache.Step(id, cache.FreshTokens(67), 64);
  cache.ExpectState(id);
  cache.ExpectInvariants();
  EXPECT_EQ(cache->stats().encoded_pages_total, 0);
}

TEST(PagedKvCache, AFullPoolRefusesTheStepAndChangesNothing) {
  KvCacheConfig config = TestConfig();
  config.max_tokens = 700;
  config.max_sequences = 1;
  ShadowedCache cache(config);
  const SequenceId id = cache.New();
  cache.Step(id, cache.FreshTokens(690));
  const pool::CacheSnapshot before = cache->Snapshot();
  const Status status = cache->Reserve(id, 300);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("sequence 0: out of encoded pages"), std::string::npos) << status.message();
  EXPECT_TRUE(SameSnapshot(before, cache->Snapshot()));
  cache.ExpectState(id);
  cache.Step(id, cache.FreshTokens(10), 1);  // what was promised still fits
  cache.ExpectState(id);
}

TEST(PagedKvCache, ANonFiniteRowFailsTheStepAndAbandonRestoresTheState) {
  ShadowedCache cache(TestConfig());
  const SequenceId id = cache.New();
  cache.Step(id, cache.FreshTokens(250));
  const pool::CacheSnapshot before = cache->Snapshot();
  ASSERT_TRUE(cache->Reserve(id, 200).ok());
  const std::vector<uint64_t> step = cache.FreshTokens(200);
  ASSERT_TRUE(cache.AppendLayer(id, 0, step).ok());
  std::vector<float> keys = ShadowRows(step, 1, 1, 0, 4), values = ShadowRows(step, 1, 1, 1, 4);
  values[4 * 77 + 2] = std::numeric_limits<float>::quiet_NaN();
  const Status status = cache->Append(id, 1, PackedRows<const float>(keys.data(), 200, 1, 4),
                                      PackedRows<const float>(values.data(), 200, 1, 4));
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_EQ(status.message(), "layer 1, head 0, position 327, V");
  EXPECT_EQ(cache->Commit(id, 200).code(), StatusCode::kFailedPrecondition);
  cache->Abandon(id);
  EXPECT_TRUE(SameSnapshot(before, cache->Snapshot()));
  cache.ExpectState(id);
  cache.Step(id, cache.FreshTokens(200), 19);
  cache.ExpectState(id);
}

TEST(PagedKvCache, AForkGoesItsOwnWay) {
  ShadowedCache cache(TestConfig());
  for (const int length : {0, 1, 64, 100, 300, 384}) {
    const SequenceId parent = cache.New();
    if (length > 0) cache.Step(parent, cache.FreshTokens(length));
    const Result<SequenceId> child = cache->Fork(parent);
    ASSERT_TRUE(child.ok());
    cache.tokens(*child) = cache.tokens(parent);
    for (int i = 0; i < 3; ++i) {
      cache.Step(parent, cache.FreshTokens(70), 23);
      cache.Step(*child, cache.FreshTokens(50), 23);
    }
    cache.ExpectState(parent);
    cache.ExpectState(*child);
    cache.ExpectInvariants();
    ASSERT_TRUE(cache->Release(parent).ok());
    cache.Step(*child, cache.FreshTokens(1), 1);
    cache.ExpectState(*child);
    ASSERT_TRUE(cache->Release(*child).ok());
    EXPECT_EQ(cache->stats().used_bytes(), 0u);
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << length;
  }
}

TEST(PagedKvCache, AForkSharesAllFullPages) {
  ShadowedCache cache(TestConfig());
  const SequenceId parent = cache.New();
  cache.Step(parent, cache.FreshTokens(500));
  const KvCacheStats before = cache->stats();
  ASSERT_TRUE(cache->Fork(parent).ok());
  EXPECT_EQ(cache->stats().bf16_pages_used, before.bf16_pages_used + 1);  // the partial last page
  EXPECT_EQ(cache->stats().encoded_pages_used, before.encoded_pages_used);
}

TEST(PagedKvCache, WritingAfterTruncationIntoASharedPageLeavesTheOtherSequenceAlone) {
  ShadowedCache cache(TestConfig());
  const SequenceId parent = cache.New();
  cache.Step(parent, cache.FreshTokens(192));  // nothing is encoded yet, so every shorter length can be resumed
  const SequenceId child = *cache->Fork(parent);
  ASSERT_EQ(*cache->Truncate(child, 150), 150);
  cache.tokens(child) = {cache.tokens(parent).begin(), cache.tokens(parent).begin() + 150};
  cache.Step(child, cache.FreshTokens(30), 1);
  cache.ExpectInvariants();
  // The parent still reads its own rows 150 .. 179, as BF16 now and encoded later.
  cache.Step(parent, cache.FreshTokens(1), 1);
  cache.Step(parent, cache.FreshTokens(200), 11);
  cache.Step(child, cache.FreshTokens(300), 11);
  cache.ExpectState(parent);
  cache.ExpectState(child);
}

TEST(PagedKvCache, TruncateGoesToTheLengthItselfOrToTheSink) {
  ShadowedCache cache(TestConfig());  // sink 64, recent 128
  const SequenceId id = cache.New();
  cache.Step(id, cache.FreshTokens(400));     // B(400) = 256: BF16 rows from 256 on
  EXPECT_EQ(*cache->Truncate(id, 390), 390);  // B(390) = 256
  cache.tokens(id).resize(390);
  cache.ExpectState(id);
  cache.Step(id, cache.FreshTokens(1), 1);
  cache.ExpectState(id);
  EXPECT_EQ(*cache->Truncate(id, 383), 64);  // B(383) = 192 is needed and gone
  cache.tokens(id).resize(64);
  cache.ExpectState(id);
  EXPECT_EQ(cache->stats().encoded_pages_used, 0);
  EXPECT_EQ(cache->stats().bf16_pages_used, 1);
  cache.Step(id, cache.FreshTokens(500), 37);
  cache.ExpectState(id);
  EXPECT_EQ(*cache->Truncate(id, 30), 30);  // inside the sink
  cache.tokens(id).resize(30);
  cache.Step(id, cache.FreshTokens(300), 37);
  cache.ExpectState(id);
  EXPECT_EQ(*cache->Truncate(id, 0), 0);
  EXPECT_EQ(cache->stats().used_bytes(), 0u);
  cache.ExpectInvariants();
}

TEST(PagedKvCache, CommittingAPartOfAStepRollsBackTheRest) {
  for (const int kept : {0, 1, 5, 16}) {
    ShadowedCache cache(TestConfig());
    const SequenceId id = cache.New();
    cache.Step(id, cache.FreshTokens(316));  // the boundary moves at 320: inside the draft
    const std::vector<uint64_t> draft = cache.FreshTokens(16);
    ASSERT_TRUE(cache->Reserve(id, 16).ok());
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(cache.AppendLayer(id, layer, draft).ok());
      cache.ExpectAttention(id, layer, draft);
    }
    ASSERT_TRUE(cache->Commit(id, kept).ok());
    cache.tokens(id).insert(cache.tokens(id).end(), draft.begin(), draft.begin() + kept);
    cache.ExpectState(id);
    cache.ExpectInvariants();
    cache.Step(id, cache.FreshTokens(20), 1);
    cache.ExpectState(id);
  }
}

TEST(PagedKvCache, SeveralSequencesAttendInOneCall) {
  ShadowedCache cache(TestConfig());
  const SequenceId ids[] = {cache.New(), cache.New(), cache.New()};
  const int history[] = {0, 330, 64}, steps[] = {5, 1, 130};
  std::vector<uint64_t> step_tokens[3];
  std::vector<float> queries;
  for (int i = 0; i < 3; ++i) {
    if (history[i] > 0) cache.Step(ids[i], cache.FreshTokens(history[i]));
    step_tokens[i] = cache.FreshTokens(steps[i]);
    ASSERT_TRUE(cache->Reserve(ids[i], steps[i]).ok());
    ASSERT_TRUE(cache.AppendLayer(ids[i], 0, step_tokens[i]).ok());
    const std::vector<float> rows = ShadowRows(step_tokens[i], 0, 2, 2, 4);
    queries.insert(queries.end(), rows.begin(), rows.end());
  }
  std::vector<float> out(queries.size());
  ASSERT_TRUE(cache
                  ->Attend(ids, 0, kTestScale, PackedRows<const float>(queries.data(), 136, 2, 4),
                           PackedRows(out.data(), 136, 2, 4))
                  .ok());
  int row = 0;
  for (int i = 0; i < 3; ++i) {
    std::vector<uint64_t> all = cache.tokens(ids[i]);
    all.insert(all.end(), step_tokens[i].begin(), step_tokens[i].end());
    const ShadowAttention shadow(all, 0, 0, kTestShape);
    for (int query = 0; query < steps[i]; ++query, ++row) {
      const std::vector<double> expected = shadow.At(history[i] + query, 1, 64, 128, kTestScale);
      const std::span<const float> actual(&out[static_cast<std::size_t>((row * 2 + 1) * 4)], 4);
      ASSERT_LE(testing::RelativeL2(actual, std::span<const double>(expected)), 1e-6) << i << " " << query;
    }
  }
}

TEST(PagedKvCache, CallsOutOfOrderAreRefusedWithTheReason) {
  ShadowedCache cache(TestConfig());
  const SequenceId id = cache.New();
  const std::vector<uint64_t> two = cache.FreshTokens(2);
  EXPECT_EQ(cache.AppendLayer(id, 0, two).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache->Commit(id, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache->Reserve(id, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Reserve(id, 1025).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Reserve(99, 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(cache->Reserve(-1, 1).code(), StatusCode::kNotFound);
  cache->Abandon(id);  // nothing to undo
  cache->Abandon(99);
  ASSERT_TRUE(cache->Reserve(id, 2).ok());
  EXPECT_EQ(cache->Reserve(id, 2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache->Fork(id).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache->Truncate(id, 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache.AppendLayer(id, 2, two).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.AppendLayer(id, -1, two).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.AppendLayer(id, 0, {1, 2, 3}).code(), StatusCode::kInvalidArgument);
  std::vector<float> rows(16);
  const SequenceId ids[] = {id};
  const auto attend = [&](int tokens, float scale) {
    return cache
        ->Attend(ids, 0, scale, PackedRows<const float>(rows.data(), tokens, 2, 4),
                 PackedRows(rows.data(), tokens, 2, 4))
        .code();
  };
  EXPECT_EQ(attend(2, 1), StatusCode::kFailedPrecondition);  // before its rows
  ASSERT_TRUE(cache.AppendLayer(id, 0, two).ok());
  EXPECT_EQ(attend(1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(attend(2, std::numeric_limits<float>::infinity()), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.AppendLayer(id, 0, two).code(), StatusCode::kFailedPrecondition);  // twice
  EXPECT_EQ(cache->Commit(id, 2).code(), StatusCode::kFailedPrecondition);           // layer 1 is missing
  ASSERT_TRUE(cache.AppendLayer(id, 1, two).ok());
  EXPECT_EQ(cache->Commit(id, 3).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cache->Commit(id, 2).ok());
  EXPECT_EQ(cache->Truncate(id, 3).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Truncate(id, -1).status().code(), StatusCode::kInvalidArgument);
}

TEST(PagedKvCache, AReleasedIdNamesNoLaterSequence) {
  ShadowedCache cache(TestConfig());
  const SequenceId old = cache.New();
  ASSERT_TRUE(cache->Reserve(old, 10).ok());
  ASSERT_TRUE(cache->Release(old).ok());  // also with a step in flight
  EXPECT_EQ(cache->stats().used_bytes(), 0u);
  const SequenceId later = cache.New();
  EXPECT_NE(later, old);
  EXPECT_EQ(cache->Release(old).code(), StatusCode::kNotFound);
  EXPECT_EQ(cache->length(later), 0);
}

TEST(PagedKvCache, NoMoreSequencesThanConfigured) {
  ShadowedCache cache(TestConfig());
  for (int i = 0; i < 4; ++i) cache.New();
  EXPECT_EQ(cache->NewSequence().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache->Fork(0).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(cache->Release(2).ok());
  EXPECT_TRUE(cache->NewSequence().ok());
}

TEST(PagedKvCache, AForkThatFindsNoPageForTheLastOneChangesNothing) {
  KvCacheConfig config = TestConfig();
  config.max_tokens = 63;
  config.max_sequences = 2;
  ShadowedCache cache(config);  // (63 + 2 * 63) / 64 pages
  const SequenceId first = cache.New();
  cache.Step(first, cache.FreshTokens(10));
  cache.Step(first, cache.FreshTokens(60));  // beyond what is promised, and it fits: both pages are used
  const pool::CacheSnapshot before = cache->Snapshot();
  EXPECT_EQ(cache->Fork(first).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(SameSnapshot(before, cache->Snapshot()));
}

TEST(PagedKvCache, BytesInUseAreThoseOfTheLedger) {
  for (const bool bf16 : {false, true}) {
    ShadowedCache cache(TestConfig(), bf16);
    const SequenceId id = cache.New();
    for (int length = 37; length < 900; length += 37) {
      cache.Step(id, cache.FreshTokens(37));
      const BitsLedger ledger = LedgerAt(cache->method(), 4, length, 64, 128);
      const double elements = 2.0 * length * kTestShape.num_layers * kTestShape.num_kv_heads * kTestShape.head_dim;
      EXPECT_NEAR(static_cast<double>(cache->stats().used_bytes()) * 8, ledger.allocated * elements, 1e-6 * elements);
      EXPECT_EQ(cache->segments(id).sink, ledger.tokens.sink);
      EXPECT_EQ(cache->segments(id).body, ledger.tokens.body);
      EXPECT_EQ(cache->segments(id).recent, ledger.tokens.recent);
    }
  }
}

TEST(PagedKvCache, PlannedAndAllocatedBytesDifferByLessThanOnePercent) {
  for (const bool bf16 : {false, true}) {
    KvCacheConfig config = TestConfig();
    config.shape = {4, 2, 2, 64};
    config.max_step_tokens = 64;
    ShadowedCache cache(config, bf16);
    const pool::CapacityPlan plan = *pool::PlanCapacity(config, *cache->method().codec);
    const auto planned = static_cast<double>(plan.bf16_bytes() + plan.encoded_bytes());
    const SequenceId id = cache.New();
    for (int i = 0; i < 4; ++i) cache.Step(id, cache.FreshTokens(64), 63);
    const auto allocated = static_cast<double>(cache->stats().allocated_bytes());
    EXPECT_GE(allocated, planned);
    EXPECT_LT(allocated, planned * 1.01);  // the workspace is the difference
  }
}

TEST(PagedKvCache, BadConfigurationsAreRefusedWithTheReason) {
  base::ThreadPool executor(1);
  const auto create = [&](const KvMethod& method, const KvMethod& profile_method, const KvCacheConfig& config) {
    return PagedKvCache::Create(method, TestProfile(profile_method, kTestShape), config, executor,
                                std::make_unique<ScalarVerbs>())
        .status();
  };
  const KvMethod int2 = TestMethod(false), bf16 = TestMethod(true);
  EXPECT_TRUE(create(int2, int2, TestConfig()).ok());
  for (const auto& [sink, recent] : {std::pair{32, 128}, std::pair{64, 100}, std::pair{-64, 128}}) {
    EXPECT_EQ(create(int2, int2, TestConfig(sink, recent)).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(create(bf16, bf16, TestConfig(sink, recent)).code(), StatusCode::kInvalidArgument);
  }
  KvCacheConfig config = TestConfig();
  config.shape.num_layers = 3;
  EXPECT_EQ(create(int2, int2, config).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create(int2, bf16, TestConfig()).message(), "the profile is for bf16, the cache is to be int2:naive");
  EXPECT_EQ(create({}, bf16, TestConfig()).code(), StatusCode::kInvalidArgument);
  config = TestConfig();
  config.max_tokens = int64_t{1} << 60;
  EXPECT_EQ(create(int2, int2, config).code(), StatusCode::kResourceExhausted);
}

// Counts calls and does nothing.
class CountingVerbs final : public KvVerbs {
 public:
  struct Counts {
    int appends = 0, demotes = 0, pages = 0;
  };
  explicit CountingVerbs(Counts* counts) : counts_(counts) {}
  Status Append(const KernelContext&, const AppendParams&) override {
    ++counts_->appends;
    return {};
  }
  Status Demote(const KernelContext&, const DemoteParams& params) override {
    ++counts_->demotes;
    counts_->pages += static_cast<int>(params.pages.size());
    return {};
  }
  Status Attend(const KernelContext&, const AttendParams&) override { return {}; }
  std::size_t AttendWorkspaceBytes(const KernelContext&, const AttendParams&) override { return 0; }

 private:
  Counts* counts_;
};

TEST(PagedKvCache, OnlyAStepThatMovesTheBoundaryDemotesAndThenOnePage) {
  base::ThreadPool executor(1);
  CountingVerbs::Counts counts;
  auto cache = PagedKvCache::Create(TestMethod(false), TestProfile(TestMethod(false), kTestShape), TestConfig(),
                                    executor, std::make_unique<CountingVerbs>(&counts));
  ASSERT_TRUE(cache.ok());
  const SequenceId id = *(*cache)->NewSequence();
  const std::vector<float> rows(4);
  const RowsView<const float> row = PackedRows(rows.data(), 1, 1, 4);
  for (int length = 1; length <= 600; ++length) {
    counts = {};
    ASSERT_TRUE((*cache)->Reserve(id, 1).ok());
    for (int layer = 0; layer < 2; ++layer) ASSERT_TRUE((*cache)->Append(id, layer, row, row).ok());
    ASSERT_TRUE((*cache)->Commit(id, 1).ok());
    const bool moves = length % 64 == 0 && length >= 64 + 128 + 64;
    EXPECT_EQ(counts.appends, 2);
    EXPECT_EQ(counts.demotes, moves ? 2 : 0) << length;
    EXPECT_EQ(counts.pages, counts.demotes) << length;
  }
}

TEST(PagedKvCache, ALongContextHoldsItsSegmentsAndAttends) {
  KvCacheConfig config = TestConfig(64, 256);
  config.max_tokens = 131073;
  config.max_sequences = 1;
  ShadowedCache cache(config);
  const SequenceId id = cache.New();
  for (int i = 0; i < 128; ++i) cache.Step(id, cache.FreshTokens(1024));
  cache.Step(id, cache.FreshTokens(1), 1);
  EXPECT_EQ(cache->segments(id).sink, 64);
  EXPECT_EQ(cache->segments(id).body, 131072 - 256 - 64);
  EXPECT_EQ(cache->segments(id).recent, 257);
  EXPECT_EQ(cache->stats().encoded_pages_used, cache->stats().encoded_pages_total);
  EXPECT_EQ(cache->Reserve(id, 64).code(), StatusCode::kResourceExhausted);  // the next page would be encoded
  cache.ExpectInvariants();
}

TEST(PagedKvCacheDeathTest, TheLengthOfASequenceThatDoesNotExistIsABugOfTheCaller) {
  ShadowedCache cache(TestConfig());
  EXPECT_DEATH(cache->length(3), "sequence 3 does not exist");
}

}  // namespace
}  // namespace oscar::cache
