#include "src/kv/calibrate/balanced_transform.h"

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>

#include "oscar/calibrate.h"
#include "src/base/status_macros.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/calibrate/eigen_solver.h"
#include "src/kv/transform/hadamard.h"

namespace oscar::calibrate {
namespace {

constexpr double kCovarianceRidge = 1e-6;  // quality.md 2, "Regularise"
constexpr double kSpectrumFloor = 1e-12;
constexpr double kMaxInverseError = 2e-3;  // of the f32 pair; KvTransform refuses 1e-2
constexpr int kMaxRaises = 8;              // to 1e6 times the mean eigenvalue: a metric that is the identity

using RowMatrixXf = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// x + share * (mean eigenvalue) * I; the identity for a zero matrix.
Matrix Regularised(const Matrix& symmetric, double share) {
  const Eigen::Index d = symmetric.rows();
  const double mean = symmetric.trace() / static_cast<double>(d);
  if (!(mean > 0)) return Matrix::Identity(d, d);
  return (symmetric + symmetric.transpose()) / (2 * mean) + share * Matrix::Identity(d, d);
}

struct Pair {
  Matrix forward, inverse;
};

std::vector<float> Narrow(const Matrix& matrix) {
  const RowMatrixXf rows = matrix.cast<float>();
  return {rows.data(), rows.data() + rows.size()};
}

double InverseError(const Pair& pair) {
  const Eigen::Index d = pair.forward.rows();
  const Matrix product = pair.forward.cast<float>().cast<double>() * pair.inverse.cast<float>().cast<double>();
  return (product - Matrix::Identity(d, d)).cwiseAbs().maxCoeff();
}

}  // namespace

double ConditionNumber(const Matrix& matrix) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(matrix.transpose() * matrix, Eigen::EigenvaluesOnly);
  const double least = solver.eigenvalues().minCoeff(), most = solver.eigenvalues().maxCoeff();
  return least > 0 ? std::sqrt(most / least) : std::numeric_limits<double>::infinity();
}

double PredictedError(const Eigen::VectorXd& spectrum, double alpha, int bits) {
  // Least mean squared error D of uniform levels on N(0, 1), over 1 - D for the unbiased gain.
  const double distortion = bits == 1 ? 0.3634 : 0.1188;
  const double sum = spectrum.sum();
  if (!(sum > 0)) return 0;
  return distortion / (1 - distortion) * spectrum.array().pow(1 - 2 * alpha).mean() * spectrum.array().pow(2 * alpha).sum() / sum;
}

Result<BalancedTransform> FitBalancedTransform(const Matrix& covariance, const Matrix& error_metric, double alpha, double gamma) {
  if (!covariance.allFinite() || !error_metric.allFinite()) return {StatusCode::kNonFinite, "the moments are not finite"};
  const Eigen::Index d = covariance.rows();
  const Matrix data = Regularised(covariance, kCovarianceRidge);
  const std::vector<double> mixing_values = transform::MixingMatrix(static_cast<int>(d));
  const Matrix mixing = Eigen::Map<const RowMatrix>(mixing_values.data(), d, d);
  for (int raise = 0; raise < kMaxRaises; ++raise, gamma *= 10) {
    const Matrix metric = Regularised(error_metric, gamma);
    const Eigen::LLT<Matrix> cholesky(metric);
    if (cholesky.info() != Eigen::Success) continue;
    const Matrix lower = cholesky.matrixL();
    OSCAR_ASSIGN_OR_RETURN(const SymmetricEigen eigen, SolveSymmetric(lower.transpose() * data * lower));
    const Eigen::VectorXd spectrum = eigen.values.cwiseMax(kSpectrumFloor * eigen.values.maxCoeff());
    // A row of code space has the variance mean w^(1 - 2 alpha) on average; the scale makes it 1, far from the ends of fp16.
    const double deviation = std::sqrt(spectrum.array().pow(1 - 2 * alpha).mean());
    const Eigen::VectorXd spread = spectrum.array().pow(alpha).matrix() * deviation;
    const Matrix balanced = lower * eigen.vectors * spread.cwiseInverse().asDiagonal();
    const double condition = ConditionNumber(balanced);
    Pair pair;
    pair.forward = balanced * mixing;
    const Matrix unmixed = lower.transpose().triangularView<Eigen::Upper>().solve(eigen.vectors) * spread.asDiagonal();
    pair.inverse = (unmixed * mixing).transpose();  // Q^T diag(w^alpha) U^T L^-1
    if (!(condition <= kMaxCondition) || !(InverseError(pair) <= kMaxInverseError)) continue;
    OSCAR_ASSIGN_OR_RETURN(KvTransform transform, KvTransform::Invertible(static_cast<int>(d), Narrow(pair.forward), Narrow(pair.inverse)));
    const Eigen::VectorXd weights = spectrum.array().pow(2 * alpha) / spectrum.array().pow(2 * alpha).mean();
    std::vector<float> stored_weights;
    for (const double weight : weights) stored_weights.push_back(static_cast<float>(weight));
    return BalancedTransform{std::move(transform), std::move(stored_weights), spectrum, metric, condition, gamma};
  }
  return {StatusCode::kInternal, "no regularisation of the error metric gives a transform that float32 can invert"};
}

}  // namespace oscar::calibrate

namespace oscar {

TransformCheck CheckTransform(const KvTransform& transform) {
  using calibrate::RowMatrix;
  const Eigen::Index d = transform.head_dim();
  const auto widened = [&](std::span<const float> values) {
    RowMatrix matrix(d, d);
    for (Eigen::Index i = 0; i < d * d; ++i) matrix.data()[i] = static_cast<double>(values[static_cast<std::size_t>(i)]);
    return matrix;
  };
  const RowMatrix matrix = widened(transform.matrix()), inverse = widened(transform.inverse());
  return {calibrate::ConditionNumber(matrix), (matrix * inverse - RowMatrix::Identity(d, d)).cwiseAbs().maxCoeff()};
}

}  // namespace oscar
