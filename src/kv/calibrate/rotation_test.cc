#include "src/kv/calibrate/rotation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <Eigen/Dense>
#include <limits>
#include <random>

#include "src/kv/calibrate/eigen_solver.h"
#include "src/kv/transform/bit_reversal.h"
#include "src/testing/seeds.h"

namespace oscar::calibrate {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr Composition kAll[] = {Composition::kPlain, Composition::kRH, Composition::kRHPbr, Composition::kHPbr,
                                Composition::kHadamard};

// Q diag(spectrum) Q^T with a random orthogonal Q.
MatrixXd Covariance(const VectorXd& spectrum, uint64_t seed) {
  std::mt19937_64 rng(testing::TestSeed(seed));
  const Eigen::Index d = spectrum.size();
  const MatrixXd random = MatrixXd::NullaryExpr(d, d, [&] { return std::normal_distribution<double>()(rng); });
  const MatrixXd basis = Eigen::HouseholderQR<MatrixXd>(random).householderQ();
  return basis * spectrum.asDiagonal() * basis.transpose();
}

VectorXd GeometricSpectrum(Eigen::Index d, double condition) {
  return VectorXd::NullaryExpr(
      d, [=](Eigen::Index i) { return std::pow(condition, static_cast<double>(i) / static_cast<double>(d - 1)); });
}

TEST(SolveSymmetric, EigenvectorsRebuildTheCovariance) {
  for (const Eigen::Index d : {8, 64, 128, 256}) {
    const MatrixXd covariance = Covariance(GeometricSpectrum(d, 1e5), 1);
    const SymmetricEigen eigen = SolveSymmetric(covariance).value();
    EXPECT_LT((eigen.vectors * eigen.values.asDiagonal() * eigen.vectors.transpose() - covariance).norm(),
              1e-12 * covariance.norm())
        << d;
    for (Eigen::Index i = 1; i < d; ++i) EXPECT_GE(eigen.values[i], eigen.values[i - 1]);
  }
}

TEST(SolveSymmetric, FloorsRoundingAndRefusesWhatIsNoCovariance) {
  VectorXd spectrum = VectorXd::Ones(8);
  spectrum[0] = -1e-12;
  EXPECT_EQ(SolveSymmetric(Covariance(spectrum, 2)).value().values[0], 0.0);
  spectrum[0] = -1e-3;
  EXPECT_EQ(SolveSymmetric(Covariance(spectrum, 2)).status().code(), StatusCode::kInternal);
  MatrixXd broken = MatrixXd::Identity(8, 8);
  broken(3, 4) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(SolveSymmetric(broken).status().code(), StatusCode::kNonFinite);
  EXPECT_EQ(SolveSymmetric(MatrixXd::Zero(4, 4)).value().vectors, MatrixXd::Identity(4, 4));
}

// method.md 2.4: the recursion H_2n = [[H_n, H_n], [H_n, -H_n]] / sqrt(2).
TEST(HadamardMatrix, FollowsTheRecursion) {
  MatrixXd expected = MatrixXd::Ones(1, 1);
  while (expected.rows() < 256) {
    const Eigen::Index n = expected.rows();
    MatrixXd next(2 * n, 2 * n);
    next << expected, expected, expected, -expected;
    expected = next / std::sqrt(2.0);
    EXPECT_LT((HadamardMatrix(2 * n) - expected).cwiseAbs().maxCoeff(), 1e-15);
  }
}

TEST(ComposeRotation, PermutesAsTheMethodSays) {
  EXPECT_EQ(transform::BitReversalPermutation(8), (std::vector<int>{7, 3, 5, 1, 6, 2, 4, 0}));
  const std::vector<int> permutation = transform::BitReversalPermutation(128);
  EXPECT_EQ(std::vector<int>(permutation.begin(), permutation.begin() + 8),
            (std::vector<int>{127, 63, 95, 31, 111, 47, 79, 15}));
  for (const Eigen::Index d : {8, 128}) {
    const MatrixXd u = Eigen::HouseholderQR<MatrixXd>(Covariance(GeometricSpectrum(d, 10), 3)).householderQ();
    const MatrixXd uh = ComposeRotation(u, Composition::kRH), uhp = ComposeRotation(u, Composition::kRHPbr);
    const std::vector<int> perm = transform::BitReversalPermutation(static_cast<int>(d));
    for (Eigen::Index j = 0; j < d; ++j) EXPECT_EQ(uhp.col(j), uh.col(perm[static_cast<size_t>(j)]));
    EXPECT_LT((uh - u * HadamardMatrix(d)).cwiseAbs().maxCoeff(), 1e-15);
    EXPECT_EQ(ComposeRotation(u, Composition::kPlain), u);
    EXPECT_EQ(ComposeRotation(u, Composition::kHadamard), HadamardMatrix(d));
    EXPECT_EQ(ComposeRotation(u, Composition::kHPbr), ComposeRotation(MatrixXd::Identity(d, d), Composition::kRHPbr));
  }
}

// Exactly H P = D P_br H with D = diag((-1)^popcount(i)): P reorders and flips eigenvectors (method.md 2.4).
TEST(ComposeRotation, ThePermutationOnlyReordersAndFlipsEigenvectors) {
  for (const Eigen::Index d : {128, 256}) {
    const MatrixXd hp = ComposeRotation(MatrixXd::Identity(d, d), Composition::kHPbr), h = HadamardMatrix(d);
    const int bits = std::countr_zero(static_cast<unsigned>(d));
    for (Eigen::Index i = 0; i < d; ++i) {
      const double sign = std::popcount(static_cast<unsigned>(i)) % 2 == 0 ? 1 : -1;
      EXPECT_EQ(hp.row(i), sign * h.row(transform::ReverseBits(static_cast<uint32_t>(i), bits)));
    }
  }
}

TEST(RecoverVectors, UndoesEveryCompositionThatHoldsThem) {
  for (const Eigen::Index d : {8, 128}) {
    const MatrixXd u = Eigen::HouseholderQR<MatrixXd>(Covariance(GeometricSpectrum(d, 10), 4)).householderQ();
    for (const Composition composition : {Composition::kPlain, Composition::kRH, Composition::kRHPbr}) {
      EXPECT_LT((RecoverVectors(ComposeRotation(u, composition), composition) - u).cwiseAbs().maxCoeff(), 1e-14);
    }
  }
}

TEST(FitRotation, PassesItsChecksForEverySizeSpectrumAndComposition) {
  for (const Eigen::Index d : {1, 2, 8, 64, 128, 256}) {
    for (const double condition : {1.0, 1e3, 1e8}) {
      const MatrixXd covariance =
          d == 1 ? MatrixXd::Constant(1, 1, 3.0) : Covariance(GeometricSpectrum(d, condition), 5);
      for (const Composition composition : kAll) {
        const Result<FittedRotation> fitted = FitRotation(covariance, composition);
        ASSERT_TRUE(fitted.ok()) << d << " " << condition << " " << CompositionName(composition) << ": "
                                 << fitted.status().message();
        EXPECT_LT(fitted->orthogonality_error, 1e-7);
        if (!FlattensDiagonal(composition)) continue;
        const VectorXd diagonal = RotatedDiagonal(fitted->rotation.cast<double>(), covariance);
        EXPECT_LT(diagonal.maxCoeff() / diagonal.minCoeff() - 1, 1e-6);
      }
    }
  }
}

TEST(FitRotation, TakesACovarianceOfRankOne) {
  VectorXd direction = VectorXd::LinSpaced(128, -3, 5);
  const Result<FittedRotation> fitted = FitRotation(direction * direction.transpose(), Composition::kRHPbr);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  EXPECT_EQ(Condition(fitted->eigenvalues), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(Top8Share(fitted->eigenvalues), 1.0, 1e-12);
}

TEST(FitRotation, EigenvaluesBeyondFloat32AreAnError) {
  EXPECT_EQ(FitRotation(MatrixXd::Identity(8, 8) * 1e39, Composition::kRHPbr).status().code(), StatusCode::kNonFinite);
}

TEST(CheckRotation, FindsAGoodRotationGoodAndABrokenOneBroken) {
  const FittedRotation fitted = FitRotation(Covariance(GeometricSpectrum(64, 1e4), 6), Composition::kRHPbr).value();
  std::vector<float> rotation(fitted.rotation.data(), fitted.rotation.data() + 64 * 64), eigenvalues;
  for (Eigen::Index i = 0; i < 64; ++i) eigenvalues.push_back(static_cast<float>(fitted.eigenvalues[i]));
  RotationCheck check = CheckRotation(rotation, eigenvalues, Composition::kRHPbr).value();
  EXPECT_LT(check.orthogonality_error, 1e-7);
  EXPECT_LT(check.basis_error, 1e-7);
  EXPECT_LT(check.diagonal_spread, 1e-6);
  EXPECT_LT(check.diagonal_mean_error, 1e-6);
  EXPECT_NEAR(check.condition, 1e4, 1);
  EXPECT_GT(check.top8_share, 0.5);
  rotation[100] += 0.01f;
  check = CheckRotation(rotation, eigenvalues, Composition::kRHPbr).value();
  EXPECT_GT(check.orthogonality_error, 1e-4);
  EXPECT_GT(check.basis_error, 1e-4);
  EXPECT_EQ(CheckRotation(rotation, std::span(eigenvalues).first(63), Composition::kRHPbr).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckRotation(rotation, eigenvalues, Composition::kHadamard).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckRotation({}, {}, Composition::kPlain).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar::calibrate
