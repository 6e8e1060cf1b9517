// Spectra of second moments, for reports of what a basis does to rows.
#pragma once

#include <span>
#include <vector>

#include "oscar/result.h"

namespace oscar {

// Eigenvalues of a symmetric positive matrix [d, d], row-major, ascending; those below 0 by rounding are 0. kInvalidArgument when the
// size is no square; kNonFinite; kInternal when one is below -1e-10 of the largest: no second moment.
Result<std::vector<double>> SymmetricEigenvalues(std::span<const double> matrix);

}  // namespace oscar
