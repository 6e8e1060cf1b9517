// Eigen-decomposition of a covariance (method.md 2.4): double, ascending.
#pragma once

#include <Eigen/Core>

#include "oscar/result.h"

namespace oscar::calibrate {

struct SymmetricEigen {
  Eigen::VectorXd values;   // ascending, negative rounding floored at 0
  Eigen::MatrixXd vectors;  // columns; vectors.col(i) belongs to values[i]
};

// C = U diag(lambda) U^T of C <- (C + C^T) / 2. A zero matrix gives U = I. kInternal when the solver fails, or lambda_0
// is below -1e-10 lambda_max (method.md 2.7): then C is no covariance. kNonFinite when C is not finite.
Result<SymmetricEigen> SolveSymmetric(const Eigen::MatrixXd& covariance);

}  // namespace oscar::calibrate
