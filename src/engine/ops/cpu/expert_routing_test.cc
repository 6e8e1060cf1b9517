#include "src/engine/ops/cpu/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

TEST(ExpertRouting, TheLargestLogitsInOrderAndTheLowerIndexAtEquals) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};
  std::vector<int32_t> experts(3);
  std::vector<float> shares(3);
  RouteToExperts(logits, experts, shares);
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 3, 4}));
  const double sum = 2 + std::exp(-1.0);
  EXPECT_NEAR(shares[0], 1 / sum, 1e-6);
  EXPECT_NEAR(shares[1], 1 / sum, 1e-6);
  EXPECT_NEAR(shares[2], std::exp(-1.0) / sum, 1e-6);
}

TEST(ExpertRouting, ALogitThatIsNotFiniteSpoilsEveryShareAndNamesExpertsThatExist) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (size_t at = 0; at < 4; ++at) {
      std::vector<float> logits = {1, 2, 3, 4}, shares(2);
      logits[at] = bad;
      std::vector<int32_t> experts(2);
      RouteToExperts(logits, experts, shares);
      EXPECT_TRUE(std::isnan(shares[0]) && std::isnan(shares[1]));
      EXPECT_NE(experts[0], experts[1]);
      for (const int32_t expert : experts) EXPECT_TRUE(expert >= 0 && expert < 4);
    }
  }
}

}  // namespace
}  // namespace oscar::engine
