#include "src/engine/serve/page_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include "src/kv/pool/capacity_plan.h"
#include "src/kv/pool/reservation.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

std::size_t PageBytes(int d) { return static_cast<std::size_t>(2 * 64 * (d / 4 + 4)); }

const CodecInfo kInt2 = {.name = "int2", .bits = 2, .encode_tokens = 64, .page_bytes = PageBytes};
const CodecInfo kPairs = {.name = "pairs", .bits = 2, .encode_tokens = 128, .page_bytes = PageBytes};
const CodecInfo kBf16 = {.name = "bf16", .bits = 16};

KvMethod Method(const CodecInfo& codec) {
  KvMethod method;
  method.codec = &codec;
  return method;
}

TEST(PageBudget, CountsTheWindowsOfEachSequence) {
  const PageBudget budget(Method(kInt2), 64, 256, 256);
  EXPECT_EQ(budget.At(320).bf16, 5);
  EXPECT_EQ(budget.At(320).encoded, 0);
  EXPECT_EQ(budget.At(960).bf16, 5);
  EXPECT_EQ(budget.At(961).bf16, 6);  // serving.md 13: 6 and 10
  EXPECT_EQ(budget.At(961).encoded, 10);
  // Four answers of 320 tokens: no encoded page, and five BF16 pages each. A budget of encoded pages alone sees nothing.
  const std::vector<PageBudget::Growth> four(4, {0, 320, true});
  EXPECT_EQ(budget.NeededBy(four).encoded, 0);
  EXPECT_EQ(budget.NeededBy(four).bf16, 20);
  // A long prompt holds a step in both forms; one that has begun to answer does not.
  EXPECT_EQ(budget.NeededBy(std::vector<PageBudget::Growth>{{0, 2048, true}}).bf16, 6 + 4);
  EXPECT_EQ(budget.NeededBy(std::vector<PageBudget::Growth>{{1500, 2048, false}}).bf16, 6 - budget.At(1500).bf16);
  EXPECT_EQ(PageBudget(Method(kBf16), 64, 256, 256).NeededBy(four).bf16, 20);
}

// A scheduler without a model: prompts in parts, answers token by token, over real pools.
struct Request {
  int prompt, target;
};

struct Member {
  Request request;
  pool::SequencePages pages;
  bool in_prompt() const { return pages.length() < request.prompt; }
};

class PageBudgetRun {
 public:
  PageBudgetRun(const CodecInfo& codec, const KvCacheConfig& config, const pool::CapacityPlan& plan, uint64_t seed)
      : budget_(Method(codec), config.sink, config.recent, config.max_step_tokens), config_(config), windows_(plan.windows), rng_(seed),
        bf16_("BF16", plan.bf16_pages), encoded_("encoded", plan.encoded_pages) {}

  // The largest number of sequences that ran at once.
  std::size_t Run(std::vector<Request> waiting) {
    std::size_t most = 0;
    while (!waiting.empty() || !running_.empty()) {
      while (!waiting.empty() && static_cast<int>(running_.size()) < config_.max_sequences && Fits(waiting.back())) {
        running_.push_back({waiting.back(), pool::SequencePages(windows_)});
        waiting.pop_back();
      }
      most = std::max(most, running_.size());
      if (!Step()) return 0;
    }
    return most;
  }

 private:
  bool Fits(const Request& request) const {
    if (running_.empty()) return true;
    std::vector<PageBudget::Growth> sequences = {{0, request.target, true}};
    for (const Member& one : running_) sequences.push_back({one.pages.length(), one.request.target, one.in_prompt()});
    const PageBudget::Pages needed = budget_.NeededBy(sequences);
    return needed.bf16 <= bf16_.num_free() && needed.encoded <= encoded_.num_free();
  }

  bool Step() {
    int room = config_.max_step_tokens;
    std::list<pool::Reservation> steps;
    const auto reserve = [&](Member& one, int count) {
      auto step = pool::Reservation::Make(one.pages, bf16_, encoded_, count);
      EXPECT_TRUE(step.ok()) << step.status().message() << ", " << running_.size() << " run, one has " << one.pages.length() << " tokens";
      if (step.ok()) steps.push_back(*std::move(step));
      room -= count;
      return step.ok();
    };
    for (Member& one : running_) {
      if (!one.in_prompt() && !reserve(one, 1)) return false;
    }
    for (Member& one : running_) {
      if (!one.in_prompt() || room <= 0) continue;
      // Parts of any size: room may have been cut for the gap between tokens, or for a resume point.
      const int most = std::min(room, one.request.prompt - one.pages.length());
      if (!reserve(one, rng_() % 2 == 0 ? most : 1 + static_cast<int>(rng_() % static_cast<uint64_t>(most)))) return false;
    }
    for (pool::Reservation& step : steps) step.Commit(step.num_tokens());
    std::erase_if(running_, [](const Member& one) { return one.pages.length() >= one.request.target; });
    return true;
  }

  const PageBudget budget_;
  const KvCacheConfig config_;
  const pool::TierWindows windows_;
  std::mt19937_64 rng_;
  pool::PagePool bf16_, encoded_;
  std::list<Member> running_;
};

TEST(PageBudget, WhoBeginsFindsItsPagesInEveryStep) {
  std::mt19937_64 rng(oscar::testing::TestSeed(61));
  std::size_t most = 0;
  for (int round = 0; round < 300; ++round) {
    const CodecInfo& codec = round % 3 == 0 ? kInt2 : round % 3 == 1 ? kPairs : kBf16;
    const auto between = [&](int low, int high) { return low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1)); };
    KvCacheConfig config;
    config.shape = {1, 1, 1, 64};
    config.sink = 64 * between(0, 2);
    config.recent = 64 * between(1, 5);
    config.max_sequences = between(1, 6);
    config.max_step_tokens = std::max(config.max_sequences, between(1, 300));
    const int longest = between(2, 1500);
    config.max_tokens = std::max<int64_t>(longest + between(0, 1500), config.max_step_tokens);
    config.prefix_pages = between(0, 3);
    const auto plan = pool::PlanCapacity(config, codec);
    ASSERT_TRUE(plan.ok());
    std::vector<Request> requests;
    for (int i = between(1, 12); i > 0; --i) {
      const int prompt = between(1, longest - 1);
      requests.push_back({prompt, between(prompt + 1, longest)});
    }
    const std::size_t ran = PageBudgetRun(codec, config, *plan, rng()).Run(std::move(requests));
    ASSERT_GT(ran, 0u) << "round " << round << ", " << codec.name << ", sink " << config.sink << ", recent " << config.recent << ", " << config.max_tokens << " tokens";
    most = std::max(most, ran);
  }
  EXPECT_GE(most, 4u);  // or the budget refuses what it need not
}

}  // namespace
}  // namespace oscar::engine
