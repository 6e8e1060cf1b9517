#include "src/engine/ops/cpu/ggml_kv_cache.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "src/testing/exact_kv_cache.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

using oscar::testing::ExactKvCache;

constexpr KvShape kShape{.num_layers = 2, .num_query_heads = 6, .num_kv_heads = 2, .head_dim = 64};
constexpr float kScale = 0.125f;

class GgmlKvCacheTest : public ::testing::Test {
 protected:
  void Make(int64_t max_tokens, int max_sequences = 3) {
    const KvCacheConfig config{.shape = kShape, .max_tokens = max_tokens, .max_sequences = max_sequences};
    auto cache = GgmlKvCache::Create(*ParseKvMethod("f16"), *DataFreeProfile("f16", kShape), config, executor_,
                                     [this](bool in_flight) { observed_.push_back(in_flight); });
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    cache_ = std::move(cache).value();
  }
  std::vector<float> Rows(int count, int heads) {
    return oscar::testing::NormalVector(random_, static_cast<size_t>(count * heads * kShape.head_dim));
  }
  // The same step of both caches; the largest difference of their answers, relative to the largest answer.
  double Step(SequenceId ours, SequenceId theirs, int count) {
    EXPECT_TRUE(cache_->Reserve(ours, count).ok());
    EXPECT_TRUE(judge_.Reserve(theirs, count).ok());
    double worst = 0, largest = 0;
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      const std::vector<float> k = Rows(count, kShape.num_kv_heads), v = Rows(count, kShape.num_kv_heads), q = Rows(count, kShape.num_query_heads);
      const auto keys = PackedRows(k.data(), count, kShape.num_kv_heads, kShape.head_dim);
      const auto values = PackedRows(v.data(), count, kShape.num_kv_heads, kShape.head_dim);
      const auto queries = PackedRows(q.data(), count, kShape.num_query_heads, kShape.head_dim);
      std::vector<float> ours_out(q.size()), theirs_out(q.size());
      EXPECT_TRUE(cache_->Append(ours, layer, keys, values).ok());
      EXPECT_TRUE(judge_.Append(theirs, layer, keys, values).ok());
      EXPECT_TRUE(cache_->Attend({&ours, 1}, layer, kScale, queries, PackedRows(ours_out.data(), count, kShape.num_query_heads, kShape.head_dim)).ok());
      EXPECT_TRUE(judge_.Attend({&theirs, 1}, layer, kScale, queries, PackedRows(theirs_out.data(), count, kShape.num_query_heads, kShape.head_dim)).ok());
      for (size_t i = 0; i < q.size(); ++i) {
        worst = std::max(worst, static_cast<double>(std::abs(ours_out[i] - theirs_out[i])));
        largest = std::max(largest, static_cast<double>(std::abs(theirs_out[i])));
      }
    }
    EXPECT_TRUE(cache_->Commit(ours, count).ok());
    EXPECT_TRUE(judge_.Commit(theirs, count).ok());
    return worst / largest;
  }
  Status AppendOne(SequenceId id, float value) {
    std::vector<float> rows(static_cast<size_t>(kShape.num_kv_heads * kShape.head_dim));
    rows[70] = value;
    const auto view = PackedRows<const float>(rows.data(), 1, kShape.num_kv_heads, kShape.head_dim);
    return cache_->Append(id, 0, view, view);
  }

  GgmlExecutor executor_{2};
  std::vector<bool> observed_;
  std::unique_ptr<KvCache> cache_;
  ExactKvCache judge_{kShape, ExactKvCache::Precision::kF16};
  std::mt19937_64 random_{oscar::testing::TestSeed(20261130)};
};

TEST_F(GgmlKvCacheTest, AttendsAsTheExactCacheOverF16RowsThroughStepsForksAndCuts) {
  Make(2000);
  const SequenceId ours = *cache_->NewSequence(), theirs = *judge_.NewSequence();
  for (const int count : {1, 200, 55, 1, 300}) EXPECT_LT(Step(ours, theirs, count), 2e-3) << count;
  const SequenceId our_fork = *cache_->Fork(ours), their_fork = *judge_.Fork(theirs);
  EXPECT_LT(Step(our_fork, their_fork, 3), 2e-3);
  EXPECT_EQ(*cache_->Truncate(ours, 130), 130);
  ASSERT_EQ(*judge_.Truncate(theirs, 130), 130);
  EXPECT_LT(Step(ours, theirs, 7), 2e-3);
  EXPECT_LT(Step(our_fork, their_fork, 1), 2e-3);
  EXPECT_EQ(cache_->length(ours), 137);
  EXPECT_EQ(cache_->length(our_fork), 561);
}

TEST_F(GgmlKvCacheTest, AFullCacheIsAnErrorThatLosesNothing) {
  Make(300, 2);
  const SequenceId ours = *cache_->NewSequence(), theirs = *judge_.NewSequence();
  EXPECT_LT(Step(ours, theirs, 290), 2e-3);
  EXPECT_EQ(cache_->Reserve(ours, 11).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->Fork(ours).status().code(), StatusCode::kResourceExhausted);
  EXPECT_LT(Step(ours, theirs, 10), 2e-3);
  ASSERT_TRUE(cache_->NewSequence().ok());
  EXPECT_EQ(cache_->NewSequence().status().code(), StatusCode::kResourceExhausted);
}

TEST_F(GgmlKvCacheTest, RowsBeyondF16AreRefusedByNameAndAStepCanBeAbandoned) {
  Make(64);
  const SequenceId id = *cache_->NewSequence();
  for (const float bad : {65520.0f, -INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
    ASSERT_TRUE(cache_->Reserve(id, 1).ok());
    const Status status = AppendOne(id, bad);
    EXPECT_EQ(status.code(), StatusCode::kNonFinite);
    EXPECT_NE(status.message().find("K of layer 0, KV head 1, position 0"), std::string::npos) << status.message();
    cache_->Abandon(id);
  }
  EXPECT_EQ(cache_->length(id), 0);
  ASSERT_TRUE(cache_->Reserve(id, 1).ok());
  EXPECT_TRUE(AppendOne(id, 65504.0f).ok());
}

TEST_F(GgmlKvCacheTest, CallsOutOfOrderAreErrors) {
  Make(64);
  const SequenceId id = *cache_->NewSequence();
  EXPECT_EQ(cache_->Reserve(id + 1, 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(cache_->Reserve(id, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(AppendOne(id, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache_->Commit(id, 1).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(cache_->Reserve(id, 1).ok());
  EXPECT_EQ(cache_->Reserve(id, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache_->Truncate(id, 0).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(AppendOne(id, 1).ok());
  EXPECT_EQ(cache_->Commit(id, 1).code(), StatusCode::kFailedPrecondition);  // one layer is missing
  EXPECT_TRUE(cache_->Commit(id, 0).ok());
  EXPECT_EQ(cache_->Truncate(id, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(cache_->Release(id).ok());
  EXPECT_EQ(cache_->Release(id).code(), StatusCode::kNotFound);
}

TEST_F(GgmlKvCacheTest, TellsWhenTheFirstStepBeginsAndWhenTheLastHasEnded) {
  Make(64);
  const SequenceId first = *cache_->NewSequence(), second = *cache_->NewSequence();
  ASSERT_TRUE(cache_->Reserve(first, 1).ok());
  ASSERT_TRUE(cache_->Reserve(second, 1).ok());
  EXPECT_TRUE(cache_->Commit(first, 0).ok());
  EXPECT_EQ(observed_, std::vector<bool>({true}));
  cache_->Abandon(second);
  cache_->Abandon(second);
  EXPECT_EQ(observed_, std::vector<bool>({true, false}));
  ASSERT_TRUE(cache_->Reserve(first, 1).ok());
  EXPECT_TRUE(cache_->Release(first).ok());
  ASSERT_TRUE(cache_->Reserve(second, 1).ok());
  cache_.reset();
  EXPECT_EQ(observed_, std::vector<bool>({true, false, true, false, true, false}));
}

TEST(GgmlKvCache, PagesOfTheLibraryDoNotTakeF16) {
  GgmlExecutor executor(1);
  const auto cache = KvCache::Create(*ParseKvMethod("f16"), *DataFreeProfile("f16", kShape), {.shape = kShape}, executor);
  EXPECT_EQ(cache.status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace oscar::engine
