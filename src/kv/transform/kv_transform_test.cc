#include "oscar/kv_transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oscar {
namespace {

// max |A A^-1 - I| and max |A^T - transposed|, from the four matrices of a transform.
double Inconsistency(const KvTransform& transform) {
  const size_t d = static_cast<size_t>(transform.head_dim());
  double worst = 0;
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) {
      double sum = i == j ? -1 : 0;
      for (size_t k = 0; k < d; ++k)
        sum += double{transform.matrix()[i * d + k]} * double{transform.inverse()[k * d + j]};
      worst = std::max(worst, std::abs(sum));
      if (transform.matrix()[i * d + j] != transform.matrix_transposed()[j * d + i]) return 1;
      if (transform.inverse()[i * d + j] != transform.inverse_transposed()[j * d + i]) return 1;
    }
  }
  return worst;
}

TEST(KvTransform, EveryKindCarriesAConsistentInverse) {
  EXPECT_EQ(Inconsistency(KvTransform::Identity(5)), 0);
  for (const int d : {1, 2, 64, 128, 256}) EXPECT_LT(Inconsistency(KvTransform::Hadamard(d).value()), 1e-6) << d;
  EXPECT_LT(Inconsistency(KvTransform::Orthogonal(2, {0.6f, 0.8f, -0.8f, 0.6f}).value()), 1e-6);
  EXPECT_LT(Inconsistency(KvTransform::Invertible(2, {2, 1, 0, 4}, {0.5f, -0.125f, 0, 0.25f}).value()), 1e-6);
}

TEST(KvTransform, HadamardIsInSylvesterOrder) {
  const KvTransform transform = KvTransform::Hadamard(4).value();
  const std::vector<float> expected = {0.5f, 0.5f, 0.5f,  0.5f,  0.5f, -0.5f, 0.5f,  -0.5f,
                                       0.5f, 0.5f, -0.5f, -0.5f, 0.5f, -0.5f, -0.5f, 0.5f};
  EXPECT_EQ(std::vector<float>(transform.matrix().begin(), transform.matrix().end()), expected);
  EXPECT_EQ(transform.kind(), TransformKind::kHadamard);
}

TEST(KvTransform, BadMatricesAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(KvTransform::Hadamard(80).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(KvTransform::Hadamard(0).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(KvTransform::Hadamard(-8).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(KvTransform::Orthogonal(2, {1, 0, 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(KvTransform::Orthogonal(0, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(KvTransform::Orthogonal(2, {1, 0, 0, nan}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(KvTransform::Orthogonal(2, {1, 0, 0, 1.001f}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(KvTransform::Orthogonal(2, {1, 0, 0, -1.00001f}).ok());
  EXPECT_EQ(KvTransform::Invertible(2, {2, 0, 0, 2}, {1, 0, 0, 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(KvTransform::Invertible(2, {2, 0, 0, 2}, {0.5f, 0, 0, nan}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar
