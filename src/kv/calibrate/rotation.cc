#include "src/kv/calibrate/rotation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/eigen_solver.h"
#include "src/kv/transform/bit_reversal.h"
#include "src/kv/transform/hadamard.h"

namespace oscar {
namespace calibrate {
namespace {

// Limits of method.md 2.7.
constexpr double kOrthogonalityDouble = 1e-12;
constexpr double kOrthogonalityFloat = 1e-7;
constexpr double kRecoveredOrthogonality = 1e-7;
constexpr double kDiagonal = 1e-6;

std::string Scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

Status CheckLimit(const char* what, double value, double limit) {
  if (value <= limit) return {};
  return {StatusCode::kInternal, std::string(what) + " is " + Scientific(value) + ", above " + Scientific(limit)};
}

double Spread(const Eigen::VectorXd& diagonal) { return diagonal.maxCoeff() / diagonal.minCoeff() - 1; }

}  // namespace

Eigen::MatrixXd HadamardMatrix(Eigen::Index d) {
  OSCAR_CHECK(transform::IsPowerOfTwo(static_cast<int>(d)));
  const double unit = 1.0 / std::sqrt(static_cast<double>(d));
  return Eigen::MatrixXd::NullaryExpr(d, d, [unit](Eigen::Index i, Eigen::Index j) {
    return std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? unit : -unit;
  });
}

Eigen::MatrixXd ComposeRotation(const Eigen::MatrixXd& vectors, Composition composition) {
  const Eigen::Index d = vectors.rows();
  if (composition == Composition::kPlain) return vectors;
  Eigen::MatrixXd mixed = HadamardMatrix(d);
  if (HoldsVectors(composition)) mixed = vectors * mixed;
  if (composition == Composition::kRH || composition == Composition::kHadamard) return mixed;
  const std::vector<int> permutation = transform::BitReversalPermutation(static_cast<int>(d));
  Eigen::MatrixXd permuted(d, d);
  for (Eigen::Index j = 0; j < d; ++j) permuted.col(j) = mixed.col(permutation[static_cast<size_t>(j)]);
  return permuted;
}

Eigen::MatrixXd RecoverVectors(const Eigen::MatrixXd& rotation, Composition composition) {
  OSCAR_CHECK(HoldsVectors(composition));
  if (composition == Composition::kPlain) return rotation;
  const Eigen::Index d = rotation.rows();
  Eigen::MatrixXd mixed = rotation;
  if (composition == Composition::kRHPbr) {
    const std::vector<int> permutation = transform::BitReversalPermutation(static_cast<int>(d));
    for (Eigen::Index j = 0; j < d; ++j) mixed.col(permutation[static_cast<size_t>(j)]) = rotation.col(j);
  }
  return mixed * HadamardMatrix(d);  // symmetric
}

double OrthogonalityError(const Eigen::MatrixXd& matrix) {
  const Eigen::Index d = matrix.cols();
  return (matrix.transpose() * matrix - Eigen::MatrixXd::Identity(d, d)).cwiseAbs().maxCoeff();
}

Eigen::VectorXd RotatedDiagonal(const Eigen::MatrixXd& rotation, const Eigen::MatrixXd& covariance) {
  return (covariance * rotation).cwiseProduct(rotation).colwise().sum().transpose();
}

Result<FittedRotation> FitRotation(const Eigen::MatrixXd& covariance, Composition composition) {
  OSCAR_ASSIGN_OR_RETURN(SymmetricEigen eigen, SolveSymmetric(covariance));
  const Eigen::MatrixXd exact = ComposeRotation(eigen.vectors, composition);
  FittedRotation fitted;
  fitted.rotation = exact.cast<float>();
  const Eigen::MatrixXd stored = fitted.rotation.cast<double>();
  fitted.orthogonality_error = OrthogonalityError(stored);
  OSCAR_TRY(CheckLimit("max |R^T R - I| before the cast", OrthogonalityError(exact), kOrthogonalityDouble));
  OSCAR_TRY(CheckLimit("max |R^T R - I| in float32", fitted.orthogonality_error, kOrthogonalityFloat));
  if (HoldsVectors(composition)) {
    const double error = OrthogonalityError(RecoverVectors(stored, composition));
    OSCAR_TRY(CheckLimit("max |U^T U - I| of the recovered eigenvectors", error, kRecoveredOrthogonality));
  }
  if (eigen.values.maxCoeff() > 0) {
    const Eigen::VectorXd diagonal = RotatedDiagonal(stored, covariance);
    OSCAR_TRY(CheckLimit("the mean of diag(R^T C R) against the mean eigenvalue",
                         std::abs(diagonal.mean() / eigen.values.mean() - 1), kDiagonal));
    if (FlattensDiagonal(composition))
      OSCAR_TRY(CheckLimit("max/min - 1 of diag(R^T C R)", Spread(diagonal), kDiagonal));
  }
  if (eigen.values.maxCoeff() > static_cast<double>(std::numeric_limits<float>::max())) {
    return Status(StatusCode::kNonFinite, "the largest eigenvalue does not fit float32");
  }
  fitted.eigenvalues = std::move(eigen.values);
  return fitted;
}

double Condition(const Eigen::VectorXd& eigenvalues) {
  const double largest = eigenvalues.maxCoeff(), smallest = eigenvalues.minCoeff();
  if (smallest > 0) return largest / smallest;
  return largest > 0 ? std::numeric_limits<double>::infinity() : 1.0;
}

double Top8Share(const Eigen::VectorXd& eigenvalues) {
  const double trace = eigenvalues.sum();
  return trace > 0 ? eigenvalues.tail(std::min<Eigen::Index>(8, eigenvalues.size())).sum() / trace : 0.0;
}

}  // namespace calibrate

Result<RotationCheck> CheckRotation(std::span<const float> rotation, std::span<const float> eigenvalues,
                                    Composition composition) {
  const auto d = static_cast<Eigen::Index>(eigenvalues.size());
  if (!transform::IsPowerOfTwo(static_cast<int>(d)) || rotation.size() != eigenvalues.size() * eigenvalues.size()) {
    return Status(StatusCode::kInvalidArgument, "a rotation of " + std::to_string(rotation.size()) + " values with " +
                                                    std::to_string(eigenvalues.size()) +
                                                    " eigenvalues cannot be checked");
  }
  if (!calibrate::HoldsVectors(composition)) {
    return Status(StatusCode::kInvalidArgument, "a data-free rotation holds no eigenvectors to check");
  }
  const Eigen::MatrixXd r = Eigen::Map<const calibrate::RowMatrixXf>(rotation.data(), d, d).cast<double>();
  const Eigen::VectorXd lambda = Eigen::Map<const Eigen::VectorXf>(eigenvalues.data(), d).cast<double>();
  const Eigen::MatrixXd u = calibrate::RecoverVectors(r, composition);
  const Eigen::VectorXd diagonal = calibrate::RotatedDiagonal(r, u * lambda.asDiagonal() * u.transpose());
  RotationCheck check;
  check.orthogonality_error = calibrate::OrthogonalityError(r);
  check.basis_error = calibrate::OrthogonalityError(u);
  if (lambda.maxCoeff() > 0) {
    check.diagonal_spread = calibrate::Spread(diagonal);
    check.diagonal_mean_error = std::abs(diagonal.mean() / lambda.mean() - 1);
  }
  check.condition = calibrate::Condition(lambda);
  check.top8_share = calibrate::Top8Share(lambda);
  return check;
}

}  // namespace oscar
