// KvTransform: construction and checks. Fast application to rows is in apply_transform-inl.h.

#include "oscar/kv_transform.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

namespace oscar {
namespace {

constexpr double kMaxOrthogonalityError = 1e-4;
constexpr double kMaxInverseError = 1e-2;

Status Invalid(std::string why) { return {StatusCode::kInvalidArgument, std::move(why)}; }

Status CheckMatrix(int head_dim, std::span<const float> matrix, std::string_view name) {
  if (head_dim < 1) return Invalid("head_dim " + std::to_string(head_dim) + " is not positive");
  const size_t expected = static_cast<size_t>(head_dim) * static_cast<size_t>(head_dim);
  if (matrix.size() != expected) {
    return Invalid("the " + std::string(name) + " has " + std::to_string(matrix.size()) + " values, not " +
                   std::to_string(expected));
  }
  if (!std::all_of(matrix.begin(), matrix.end(), [](float value) { return std::isfinite(value); })) {
    return Invalid("the " + std::string(name) + " holds a value that is not finite");
  }
  return {};
}

std::vector<float> Transposed(std::span<const float> matrix, int head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  std::vector<float> transposed(matrix.size());
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) transposed[j * d + i] = matrix[i * d + j];
  }
  return transposed;
}

// max |A B - I|, with the rows of A and the columns of B (the rows of B^T) both contiguous.
double MaxProductError(std::span<const float> a, std::span<const float> b_transposed, int head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  double worst = 0;
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) {
      double sum = i == j ? -1.0 : 0.0;
      for (size_t k = 0; k < d; ++k)
        sum += static_cast<double>(a[i * d + k]) * static_cast<double>(b_transposed[j * d + k]);
      worst = std::max(worst, std::abs(sum));
    }
  }
  return worst;
}

}  // namespace

KvTransform::KvTransform(TransformKind kind, int head_dim, std::vector<float> matrix, std::vector<float> inverse)
    : kind_(kind),
      head_dim_(head_dim),
      matrix_(std::move(matrix)),
      inverse_(std::move(inverse)),
      matrix_transposed_(Transposed(matrix_, head_dim)),
      inverse_transposed_(Transposed(inverse_, head_dim)) {}

KvTransform KvTransform::Identity(int head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  std::vector<float> matrix(d * d, 0.0f);
  for (size_t i = 0; i < d; ++i) matrix[i * d + i] = 1.0f;
  std::vector<float> inverse = matrix;
  return KvTransform(TransformKind::kIdentity, head_dim, std::move(matrix), std::move(inverse));
}

Result<KvTransform> KvTransform::Hadamard(int head_dim) {
  if (head_dim < 1 || !std::has_single_bit(static_cast<unsigned>(head_dim))) {
    return Status(StatusCode::kUnsupported,
                  "a Hadamard transform needs a power of two, not head_dim " + std::to_string(head_dim));
  }
  const size_t d = static_cast<size_t>(head_dim);
  const float unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  std::vector<float> matrix(d * d);
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) matrix[i * d + j] = std::popcount(i & j) % 2 == 0 ? unit : -unit;
  }
  std::vector<float> inverse = matrix;
  return KvTransform(TransformKind::kHadamard, head_dim, std::move(matrix), std::move(inverse));
}

Result<KvTransform> KvTransform::Orthogonal(int head_dim, std::vector<float> matrix) {
  if (Status status = CheckMatrix(head_dim, matrix, "matrix"); !status.ok()) return status;
  std::vector<float> transposed = Transposed(matrix, head_dim);
  const double error = MaxProductError(transposed, transposed, head_dim);  // R^T R
  if (!(error <= kMaxOrthogonalityError)) {
    return Invalid("the matrix is not orthogonal: max |R^T R - I| is " + std::to_string(error) + ", above 1e-4");
  }
  return KvTransform(TransformKind::kOrthogonal, head_dim, std::move(matrix), std::move(transposed));
}

Result<KvTransform> KvTransform::Invertible(int head_dim, std::vector<float> matrix, std::vector<float> inverse) {
  if (Status status = CheckMatrix(head_dim, matrix, "matrix"); !status.ok()) return status;
  if (Status status = CheckMatrix(head_dim, inverse, "inverse"); !status.ok()) return status;
  const double error = MaxProductError(matrix, Transposed(inverse, head_dim), head_dim);
  if (!(error <= kMaxInverseError)) {
    return Invalid("the inverse does not belong to the matrix: max |A A^-1 - I| is " + std::to_string(error) +
                   ", above 1e-2");
  }
  return KvTransform(TransformKind::kInvertible, head_dim, std::move(matrix), std::move(inverse));
}

}  // namespace oscar
