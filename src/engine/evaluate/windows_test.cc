#include "src/engine/evaluate/windows.h"

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

TEST(PlanWindows, SlidesByTheScoredLengthSoThatEveryTokenIsScoredOnce) {
  const auto plan = PlanWindows(100, 20, 10, 0);
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->starts.size(), 9u);
  for (size_t i = 0; i < plan->starts.size(); ++i) EXPECT_EQ(plan->starts[i], 10 * i);
  EXPECT_LE(plan->starts.back() + 20, 100u);
}

TEST(PlanWindows, ALimitSpreadsTheWindowsFromFirstToLast) {
  const auto plan = PlanWindows(1000, 20, 10, 3);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->starts, (std::vector<size_t>{0, 490, 980}));
}

TEST(PlanWindows, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(PlanWindows(100, 1, 1, 0).ok());
  EXPECT_FALSE(PlanWindows(100, 20, 0, 0).ok());
  EXPECT_FALSE(PlanWindows(100, 20, 20, 0).ok());
  const auto too_short = PlanWindows(19, 20, 10, 0);
  ASSERT_FALSE(too_short.ok());
  EXPECT_NE(too_short.status().message().find("19 tokens"), std::string::npos);
}

}  // namespace
}  // namespace oscar::engine
