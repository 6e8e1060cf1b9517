#include "src/kv/calibrate/eigen_solver.h"

#include <Eigen/Eigenvalues>
#include <string>

namespace oscar::calibrate {

Result<SymmetricEigen> SolveSymmetric(const Eigen::MatrixXd& covariance) {
  constexpr double kMaxNegative = 1e-10;  // of lambda_max; method.md 2.7
  if (!covariance.allFinite()) return Status(StatusCode::kNonFinite, "the covariance is not finite");
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver((covariance + covariance.transpose()) / 2);
  if (solver.info() != Eigen::Success) return Status(StatusCode::kInternal, "the eigen-decomposition did not converge");
  SymmetricEigen result = {solver.eigenvalues(), solver.eigenvectors()};
  const Eigen::Index d = result.values.size();
  for (Eigen::Index i = 1; i < d; ++i) {
    if (!(result.values[i] >= result.values[i - 1]))
      return Status(StatusCode::kInternal, "the eigenvalues do not ascend");
  }
  if (result.values[0] < -kMaxNegative * result.values[d - 1]) {
    return Status(StatusCode::kInternal, "the smallest eigenvalue is " +
                                             std::to_string(result.values[0] / result.values[d - 1]) +
                                             " of the largest: not a covariance");
  }
  result.values = result.values.cwiseMax(0.0);
  return result;
}

}  // namespace oscar::calibrate
