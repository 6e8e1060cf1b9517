#include "src/engine/serve/serving_plan.h"

#include <gtest/gtest.h>

namespace oscar::engine {
namespace {

ServingNeeds Needs(uint64_t memory_bytes, const char* method = "int2:hadamard") {
  ServingNeeds needs;
  needs.shape = {.num_layers = 30, .num_query_heads = 9, .num_kv_heads = 3, .head_dim = 64};
  needs.method = ParseKvMethod(method).value();
  needs.trained_context = 8192;
  needs.memory_bytes = memory_bytes;
  return needs;
}

TEST(ServingPlan, MuchMemoryGivesTheTrainedContextAndNoMoreThanTwoOfThemPerPlace) {
  const auto plan = PlanServing(Needs(uint64_t{64} << 30));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->context, 8192);
  EXPECT_EQ(plan->max_running, 8);
  EXPECT_EQ(plan->kv_tokens, 2 * 8 * 8192);
  EXPECT_EQ(plan->prefix_pages, 4 * 6 * 8);
}

TEST(ServingPlan, LittleMemoryGivesFewerPlacesAndAShorterContext) {
  const auto plan = PlanServing(Needs(uint64_t{60} << 20));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LT(plan->max_running, 8);
  EXPECT_GE(plan->context, 1024);
  EXPECT_LT(plan->context, 8192);
  EXPECT_GE(plan->kv_tokens, plan->context);
}

TEST(ServingPlan, ThePoolsStayBelowTheMemory) {
  for (uint64_t megabytes = 48; megabytes < 4096; megabytes += megabytes / 3) {
    const ServingNeeds needs = Needs(megabytes << 20);
    const auto plan = PlanServing(needs);
    ASSERT_TRUE(plan.ok()) << megabytes << ": " << plan.status().message();
    const int64_t bf16_page = int64_t{30} * 3 * 64 * 64 * 4, int2_page = int64_t{30} * 3 * 64 * 2 * (64 / 4 + 4);
    const int64_t used = (plan->max_running * int64_t{1 + 9} + plan->prefix_pages) * bf16_page + (plan->kv_tokens - 320) / 64 * int2_page;
    EXPECT_LE(used, static_cast<int64_t>(needs.memory_bytes)) << megabytes;
  }
}

TEST(ServingPlan, WhatIsGivenIsKeptOrRefused) {
  ServingNeeds needs = Needs(uint64_t{1} << 30);
  needs.context = 2000;
  needs.max_running = 3;
  needs.kv_tokens = 4000;
  needs.prefix_cache = false;
  const auto plan = PlanServing(needs);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->context, 2000);
  EXPECT_EQ(plan->max_running, 3);
  EXPECT_EQ(plan->kv_tokens, 4000);
  EXPECT_EQ(plan->prefix_pages, 0);
  needs = Needs(uint64_t{20} << 20);
  needs.context = 8192;
  EXPECT_EQ(PlanServing(needs).status().code(), StatusCode::kResourceExhausted);
}

TEST(ServingPlan, AnExactCacheNeedsSevenTimesTheMemory) {
  const auto exact = PlanServing(Needs(uint64_t{1} << 30, "bf16")), encoded = PlanServing(Needs(uint64_t{1} << 30));
  ASSERT_TRUE(exact.ok() && encoded.ok());
  EXPECT_GT(encoded->kv_tokens, 2 * exact->kv_tokens);
}

TEST(ServingPlan, TheMachineHasMemory) { EXPECT_GT(AvailableMemory(), uint64_t{1} << 20); }

}  // namespace
}  // namespace oscar::engine
