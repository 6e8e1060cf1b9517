// KvTransform: an invertible linear map A [d, d] of K or V rows, applied before encoding (row vectors: y = (x - mu) A).
// Identity and Hadamard need no data; an OSCAR rotation is orthogonal (A^-1 = A^T); int2:balanced is a general one.
// The inverse comes with the fit: nothing inverts a matrix at load. Sources: method.md 2.4, quality.md 2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/result.h"

namespace oscar {

enum class TransformKind : uint8_t { kIdentity, kHadamard, kOrthogonal, kInvertible };

class KvTransform {
 public:
  static KvTransform Identity(int head_dim);
  // Normalised Sylvester Hadamard matrix. kUnsupported unless head_dim is a power of two.
  static Result<KvTransform> Hadamard(int head_dim);
  // matrix: [d, d] f32 row-major. kInvalidArgument when sizes differ, a value is not finite, or max |R^T R - I| > 1e-4.
  static Result<KvTransform> Orthogonal(int head_dim, std::vector<float> matrix);
  // matrix and inverse: [d, d] f32 row-major. kInvalidArgument when sizes differ or a value is not finite, or when
  // max |A A^-1 - I| > 1e-2.
  static Result<KvTransform> Invertible(int head_dim, std::vector<float> matrix, std::vector<float> inverse);

  TransformKind kind() const { return kind_; }
  int head_dim() const { return head_dim_; }
  // A and A^-1, [d, d] f32 row-major; filled for every kind, so that a slow judge needs no special case.
  std::span<const float> matrix() const { return matrix_; }
  std::span<const float> inverse() const { return inverse_; }
  // A^T and A^-T, for callers that walk columns: y = x A is a dot of x with the rows of A^T.
  std::span<const float> matrix_transposed() const { return matrix_transposed_; }
  std::span<const float> inverse_transposed() const { return inverse_transposed_; }

 private:
  KvTransform(TransformKind kind, int head_dim, std::vector<float> matrix, std::vector<float> inverse);
  TransformKind kind_;
  int head_dim_;
  std::vector<float> matrix_, inverse_, matrix_transposed_, inverse_transposed_;
};

}  // namespace oscar
