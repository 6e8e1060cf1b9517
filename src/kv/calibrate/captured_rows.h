// The rows that a calibration sees: their checks, and their sums of x^T x. Rows are taken in groups, rounded to BF16 as the cache
// rounds them, widened, and added by a symmetric rank update.
#pragma once

#include <Eigen/Core>
#include <cstdint>

#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar::calibrate {

using Matrix = Eigen::MatrixXd;
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline constexpr int kGroupTokens = 256;  // rows of one update: large enough for a fast product, small enough for the cache

// kInvalidArgument naming layer and `name` unless the view is [num_tokens, num_heads, head_dim].
Status CheckView(int layer, const char* name, const RowsView<const float>& rows, int num_tokens, int num_heads,
                 int head_dim);
// kNonFinite naming layer, head and token (counted from first_token) unless all values are finite, also after the rounding to
// BF16, which can overflow.
Status CheckFinite(int layer, const char* name, const char* head_name, const RowsView<const float>& rows,
                   int64_t first_token);

// Its error.
Status NonFiniteRow(int layer, const char* name, const char* head_name, int head, int64_t token);

// Rows of heads [first_head, first_head + num_heads) as BF16 numbers in double: [num_tokens * num_heads, d].
RowMatrix WidenedRows(const RowsView<const float>& rows, int first_head, int num_heads);

// lower += rows^T rows; only the lower triangle is summed.
void AddOuterProducts(Matrix& lower, const RowMatrix& rows);
// The whole symmetric matrix of a lower triangle.
inline Matrix Full(const Matrix& lower) { return lower.selfadjointView<Eigen::Lower>(); }

}  // namespace oscar::calibrate
