#include "src/kv/transform/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "oscar/kv_transform.h"
#include "src/kv/transform/bit_reversal.h"
#include "src/testing/seeds.h"

namespace oscar::transform {
namespace {

TEST(Hadamard, OfARampOfEightHasTheKnownValues) {
  std::vector<float> row = {0, 1, 2, 3, 4, 5, 6, 7};
  ApplyHadamard(row);
  const float expected[] = {28, -4, -8, 0, -16, 0, 0, 0};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(row[i], expected[i] / std::sqrt(8.0), 1e-5);
}

TEST(Hadamard, ButterfliesEqualTheMatrixAndUndoThemselves) {
  std::mt19937_64 rng(testing::TestSeed(1));
  for (int d : {1, 2, 8, 64, 128, 256}) {
    const std::vector<float> x = testing::NormalVector(rng, static_cast<size_t>(d));
    const KvTransform transform = *KvTransform::Hadamard(d);
    std::vector<float> row = x;
    ApplyHadamard(row);
    for (int j = 0; j < d; ++j) {
      double expected = 0;
      for (int i = 0; i < d; ++i) expected += double{x[static_cast<size_t>(i)]} * transform.matrix()[static_cast<size_t>(i * d + j)];
      EXPECT_NEAR(row[static_cast<size_t>(j)], expected, 1e-5) << "d " << d << " channel " << j;
    }
    ApplyHadamard(row);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(row[i], x[i], 1e-5);
  }
}

TEST(BitReversal, PermutationsHaveTheValuesOfTheSpecification) {
  EXPECT_EQ(BitReversalPermutation(8), (std::vector<int>{7, 3, 5, 1, 6, 2, 4, 0}));
  const std::vector<int> perm = BitReversalPermutation(128);
  EXPECT_EQ(std::vector<int>(perm.begin(), perm.begin() + 8), (std::vector<int>{127, 63, 95, 31, 111, 47, 79, 15}));
  EXPECT_EQ(ReverseBits(3, 7), 96u);
}

}  // namespace
}  // namespace oscar::transform
