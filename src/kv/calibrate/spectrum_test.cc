#include "oscar/spectrum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/testing/random_rotation.h"

namespace oscar {
namespace {

TEST(SymmetricEigenvalues, AreThoseThatTheMatrixWasMadeOf) {
  constexpr size_t kSize = 12;
  std::mt19937_64 rng(testing::TestSeed(7));
  const std::vector<double> rotation = testing::RandomRotation(rng, kSize);
  std::vector<double> matrix(kSize * kSize);
  for (size_t i = 0; i < kSize; ++i) {
    for (size_t j = 0; j < kSize; ++j) {
      for (size_t k = 0; k < kSize; ++k) matrix[i * kSize + j] += rotation[k * kSize + i] * std::exp2(static_cast<double>(k)) * rotation[k * kSize + j];
    }
  }
  const auto values = SymmetricEigenvalues(matrix);
  ASSERT_TRUE(values.ok()) << values.status().message();
  for (size_t k = 0; k < kSize; ++k) EXPECT_NEAR((*values)[k] / std::exp2(static_cast<double>(k)), 1, 1e-9);
}

TEST(SymmetricEigenvalues, RefusesWhatIsNoSecondMoment) {
  EXPECT_EQ(SymmetricEigenvalues(std::vector<double>(6, 1.0)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SymmetricEigenvalues({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SymmetricEigenvalues(std::vector<double>{1, 0, 0, -1}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(SymmetricEigenvalues(std::vector<double>{std::nan("")}).status().code(), StatusCode::kNonFinite);
}

}  // namespace
}  // namespace oscar
