#include "src/kv/pool/capacity_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "src/kv/pool/reservation.h"
#include "src/testing/seeds.h"

namespace oscar::pool {
namespace {

const CodecInfo kInt2 = {.name = "int2", .bits = 2, .encode_tokens = 64, .page_bytes = [](int d) {
                           return static_cast<std::size_t>(2 * 64 * (d / 4 + 4));
                         }};
const CodecInfo kBf16 = {.name = "bf16", .bits = 16};

KvCacheConfig Qwen3_8B() {
  KvCacheConfig config;
  config.shape = {36, 32, 8, 128};
  config.max_tokens = 32768;
  return config;
}

TEST(PlanCapacity, CountsTheBytesPerTokenOfPublishedModels) {
  struct Case {
    KvShape shape;
    std::size_t bf16_bytes, int2_bytes;  // per token, method.md 4
  };
  for (const Case& model : {Case{{36, 32, 8, 128}, 147456, 20736}, Case{{64, 64, 8, 128}, 262144, 36864},
                            Case{{92, 96, 8, 128}, 376832, 52992}}) {
    KvCacheConfig config;
    config.shape = model.shape;
    const Result<CapacityPlan> plan = PlanCapacity(config, kInt2);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->bf16_page_bytes, model.bf16_bytes * 64);
    EXPECT_EQ(plan->encoded_page_bytes, model.int2_bytes * 64);
  }
}

TEST(PlanCapacity, DeductsSinkAndWindowBeforeItSizesTheEncodedPool) {
  const Result<CapacityPlan> plan = PlanCapacity(Qwen3_8B(), kInt2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->encoded_pages, (32768 - 64 - 256) / 64);
  // Sink 64, window 256 + 63, a step of 512.
  EXPECT_EQ(plan->bf16_pages, 1 + 13);
  KvCacheConfig four = Qwen3_8B();
  four.max_sequences = 4;
  EXPECT_EQ(PlanCapacity(four, kInt2)->bf16_pages, 4 * 14);
  EXPECT_EQ(PlanCapacity(four, kInt2)->encoded_pages, plan->encoded_pages);
}

TEST(PlanCapacity, DecodeAloneNeedsSixBf16PagesPerSequence) {
  KvCacheConfig config = Qwen3_8B();
  config.max_step_tokens = 1;
  EXPECT_EQ(PlanCapacity(config, kInt2)->bf16_pages, 6);  // gpu.md 7.2
}

TEST(PlanCapacity, AShortContextNeedsNoMoreBf16PagesThanTokens) {
  KvCacheConfig config = Qwen3_8B();
  config.max_tokens = 100;
  const Result<CapacityPlan> plan = PlanCapacity(config, kInt2);
  EXPECT_EQ(plan->bf16_pages, 2);
  EXPECT_EQ(plan->encoded_pages, 0);
}

TEST(PlanCapacity, Bf16HasNoEncodedPagesAtAll) {
  KvCacheConfig config = Qwen3_8B();
  config.max_sequences = 3;
  const Result<CapacityPlan> plan = PlanCapacity(config, kBf16);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->encoded_pages, 0);
  EXPECT_EQ(plan->encoded_bytes(), 0u);
  EXPECT_EQ(plan->bf16_pages, 512 + 2);  // three sequences, each with a partial page
  EXPECT_EQ(plan->windows.recent, kEverythingRecent);
}

TEST(PlanCapacity, RefusesBadWindowsShapesAndLimitsNamingThem) {
  struct Case {
    void (*spoil)(KvCacheConfig&);
    const char* named;
  };
  const Case cases[] = {
      {[](KvCacheConfig& c) { c.sink = 32; }, "sink window of 32 tokens"},
      {[](KvCacheConfig& c) { c.sink = -64; }, "sink window of -64"},
      {[](KvCacheConfig& c) { c.recent = 100; }, "recent window of 100 tokens"},
      {[](KvCacheConfig& c) { c.recent = std::numeric_limits<int>::max(); }, "recent window"},
      {[](KvCacheConfig& c) { c.max_tokens = 0; }, "max_tokens is 0"},
      {[](KvCacheConfig& c) { c.max_sequences = 0; }, "max_sequences is 0"},
      {[](KvCacheConfig& c) { c.max_step_tokens = -1; }, "max_step_tokens -1"},
      {[](KvCacheConfig& c) { c.shape.num_kv_heads = 0; }, "0 KV heads"},
      {[](KvCacheConfig& c) { c.shape.num_kv_heads = 5; }, "32 query heads are no multiple of 5"},
      {[](KvCacheConfig& c) { c.shape.num_layers = -3; }, "-3 layers"},
  };
  for (const Case& bad : cases) {
    KvCacheConfig config = Qwen3_8B();
    bad.spoil(config);
    for (const CodecInfo& codec : {kInt2, kBf16}) {
      const Status status = PlanCapacity(config, codec).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad.named;
      EXPECT_NE(status.message().find(bad.named), std::string::npos) << status.message();
    }
  }
}

TEST(PlanCapacity, ZeroSinkAndZeroRecentAreLegal) {
  KvCacheConfig config = Qwen3_8B();
  config.sink = 0;
  config.recent = 0;
  config.max_step_tokens = 1;
  const Result<CapacityPlan> plan = PlanCapacity(config, kInt2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->encoded_pages, 512);
  EXPECT_EQ(plan->bf16_pages, 1);
}

TEST(PlanCapacity, SizesBeyondTheMachineAreRefusedNotWrapped) {
  KvCacheConfig config = Qwen3_8B();
  config.max_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(PlanCapacity(config, kInt2).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(PlanCapacity(config, kBf16).status().code(), StatusCode::kResourceExhausted);
  config = Qwen3_8B();
  const int huge = std::numeric_limits<int>::max();
  config.shape = {huge, huge, huge, huge};
  EXPECT_EQ(PlanCapacity(config, kInt2).status().code(), StatusCode::kResourceExhausted);
}

TEST(PlanCapacity, LimitsThatTheTokensCannotReachCostNothing) {
  KvCacheConfig config = Qwen3_8B();
  config.max_sequences = std::numeric_limits<int>::max();
  config.max_step_tokens = std::numeric_limits<int>::max();
  config.max_tokens = 64;
  const Result<CapacityPlan> plan = PlanCapacity(config, kInt2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->bf16_pages, 64);  // 64 sequences of one token
  EXPECT_EQ(plan->encoded_pages, 0);
}

// The promise of PlanCapacity: within max_tokens no step ever fails. Sequences grow in random steps to random lengths.
TEST(PlanCapacity, AnyMixOfSequencesWithinTheConfiguredTokensFits) {
  std::mt19937_64 rng(testing::TestSeed(41));
  for (int round = 0; round < 300; ++round) {
    KvCacheConfig config;
    config.shape = {1, 1, 1, 64};
    config.sink = static_cast<int>(rng() % 3) * 64;
    config.recent = static_cast<int>(rng() % 4) * 64;
    config.max_sequences = 1 + static_cast<int>(rng() % 4);
    config.max_tokens = 1 + static_cast<int>(rng() % 3000);
    config.max_step_tokens = 1 + static_cast<int>(rng() % 600);
    const CapacityPlan plan = *PlanCapacity(config, round % 4 == 0 ? kBf16 : kInt2);
    PagePool bf16("BF16", plan.bf16_pages), encoded("encoded", plan.encoded_pages);
    std::vector<SequencePages> sequences;
    for (int i = 0; i < config.max_sequences; ++i) sequences.emplace_back(plan.windows);
    int64_t left = config.max_tokens;
    while (left > 0) {
      // All sequences reserve before any commits, as in a batched step.
      std::vector<Reservation> steps;
      steps.reserve(sequences.size());
      for (SequencePages& sequence : sequences) {
        const int tokens =
            static_cast<int>(std::min<int64_t>(left, 1 + static_cast<int>(rng() % config.max_step_tokens)));
        if (tokens == 0 || rng() % 3 == 0) continue;
        Result<Reservation> step = Reservation::Make(sequence, bf16, encoded, tokens);
        ASSERT_TRUE(step.ok()) << step.status().message() << " in round " << round;
        left -= tokens;
        steps.push_back(std::move(step).value());
      }
      for (Reservation& step : steps) step.Commit(step.num_tokens());
    }
  }
}

}  // namespace
}  // namespace oscar::pool
