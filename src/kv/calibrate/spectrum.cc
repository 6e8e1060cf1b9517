#include "oscar/spectrum.h"

#include <cmath>
#include <string>

#include <Eigen/Core>

#include "src/base/status_macros.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/calibrate/eigen_solver.h"

namespace oscar {

Result<std::vector<double>> SymmetricEigenvalues(std::span<const double> matrix) {
  const auto d = static_cast<Eigen::Index>(std::llround(std::sqrt(static_cast<double>(matrix.size()))));
  if (d == 0 || static_cast<std::size_t>(d * d) != matrix.size()) {
    return {StatusCode::kInvalidArgument, "a matrix of " + std::to_string(matrix.size()) + " values is not square"};
  }
  OSCAR_ASSIGN_OR_RETURN(const calibrate::SymmetricEigen eigen,
                         calibrate::SolveSymmetric(Eigen::Map<const calibrate::RowMatrix>(matrix.data(), d, d)));
  return std::vector<double>(eigen.values.begin(), eigen.values.end());
}

}  // namespace oscar
