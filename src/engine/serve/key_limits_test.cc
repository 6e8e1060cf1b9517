#include "src/engine/serve/key_limits.h"

#include <gtest/gtest.h>

namespace oscar::engine {
namespace {

using Clock = KeyLimits::Clock;

class KeyLimitsTest : public ::testing::Test {
 protected:
  KeyLimits Limits(const KeyLimitOptions& options) {
    return KeyLimits(options, [this] { return now_; });
  }
  void Pass(double seconds) { now_ += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)); }

  Clock::time_point now_ = Clock::time_point{} + std::chrono::hours(5);
  const ApiKey one_, two_;
  KeyLimits::Refusal refusal_;
};

TEST_F(KeyLimitsTest, WithoutLimitsEverythingIsTaken) {
  KeyLimits limits = Limits({});
  std::vector<std::shared_ptr<KeyLimits::Lease>> leases;
  for (int i = 0; i < 100; ++i) {
    leases.push_back(limits.Take(&one_, 1'000'000, &refusal_));
    ASSERT_NE(leases.back(), nullptr);
    leases.back()->Charge(1'000'000);
  }
}

TEST_F(KeyLimitsTest, RequestsOfAKeyAreCountedUntilTheLastHolderIsGone) {
  KeyLimits limits = Limits({.max_requests = 2});
  auto first = limits.Take(&one_, 1, &refusal_), second = limits.Take(&one_, 1, &refusal_);
  EXPECT_EQ(limits.Take(&one_, 1, &refusal_), nullptr);
  EXPECT_NE(refusal_.message.find("2 requests"), std::string::npos);
  EXPECT_NE(limits.Take(&two_, 1, &refusal_), nullptr) << "another key's";
  auto holder = second;
  second.reset();
  EXPECT_EQ(limits.Take(&one_, 1, &refusal_), nullptr);
  holder.reset();
  EXPECT_NE(limits.Take(&one_, 1, &refusal_), nullptr);
}

TEST_F(KeyLimitsTest, TokensComeBackWithTimeAndWhatWasUsedTooMuchIsOwed) {
  KeyLimits limits = Limits({.tokens_per_minute = 600});
  auto lease = limits.Take(&one_, 500, &refusal_);
  ASSERT_NE(lease, nullptr);
  lease->Charge(400);  // 300 owed
  EXPECT_EQ(limits.Take(&one_, 1, &refusal_), nullptr);
  EXPECT_NEAR(refusal_.retry_after_seconds, 30.1, 1e-6);
  EXPECT_NE(limits.Take(&two_, 1, &refusal_), nullptr) << "another key's";
  Pass(29);
  EXPECT_EQ(limits.Take(&one_, 1, &refusal_), nullptr);
  Pass(2);
  EXPECT_NE(limits.Take(&one_, 10'000, &refusal_), nullptr) << "never refused for its size alone";
  Pass(3600);
  EXPECT_NE(limits.Take(&one_, 601, &refusal_), nullptr);
  EXPECT_EQ(limits.Take(&one_, 1, &refusal_), nullptr) << "more than a minute is never saved up";
}

}  // namespace
}  // namespace oscar::engine
