// The transform of quality.md 2 from a covariance and an error metric.
#pragma once

#include <Eigen/Core>

#include "oscar/kv_transform.h"
#include "oscar/result.h"

namespace oscar::calibrate {

struct BalancedTransform {
  KvTransform transform;         // T and its inverse; rows of code space have unit variance on average
  std::vector<float> metric;     // w^(2 alpha) [d], its mean 1
  Eigen::VectorXd spectrum;      // w, ascending
  Eigen::MatrixXd error_metric;  // M, regularised
  double condition = 0;          // of T
  double gamma = 0;              // the regularisation that was used
};

// Exponent alpha and the condition numbers from which on a fit is reported, or regularised further (quality.md 2 and 6).
inline double AlphaOf(int bits) { return bits == 1 ? 0.25 : 0.3; }
inline constexpr double kReportedCondition = 1e4;
inline constexpr double kMaxCondition = 1e6;

// gamma is raised tenfold until the condition number of T is at most kMaxCondition and its f32 inverse holds. Zero matrices
// count as the identity. kNonFinite when a matrix is not finite, kInternal when no gamma helps.
Result<BalancedTransform> FitBalancedTransform(const Eigen::MatrixXd& covariance, const Eigen::MatrixXd& error_metric,
                                               double alpha, double gamma);

// Singular values of A: largest over smallest.
double ConditionNumber(const Eigen::MatrixXd& matrix);

// Predicted error of a row of independent components of variances w under plain rounding, relative to the error of storing
// nothing: noise of a unit normal under `bits` uniform levels with unbiased gain, times mean w^(1 - 2 alpha) sum w^(2 alpha) / sum w.
double PredictedError(const Eigen::VectorXd& spectrum, double alpha, int bits);

}  // namespace oscar::calibrate
