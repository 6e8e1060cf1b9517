#include "src/kv/profile/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "src/base/check.h"
#include "src/kv/transform/hadamard.h"

namespace oscar::profile {
namespace {

// Q^T diag(w) Q. With a Hadamard matrix the entry (i, j) depends on i xor j alone, since H_ki H_kj = H_k(i xor j) / sqrt(d).
std::vector<double> MetricMatrix(int head_dim, std::span<const double> weights) {
  const auto d = static_cast<std::size_t>(head_dim);
  const std::vector<double> mixing = transform::MixingMatrix(head_dim);
  std::vector<double> metric(d * d, 0.0);
  if (transform::IsPowerOfTwo(head_dim)) {
    std::vector<double> first_row(d, 0.0);
    for (std::size_t k = 0; k < d; ++k) {
      for (std::size_t j = 0; j < d; ++j) first_row[j] += mixing[k * d] * weights[k] * mixing[k * d + j];
    }
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) metric[i * d + j] = first_row[i ^ j];
    }
    return metric;
  }
  for (std::size_t k = 0; k < d; ++k) {
    for (std::size_t i = 0; i < d; ++i) {
      const double factor = mixing[k * d + i] * weights[k];
      for (std::size_t j = 0; j < d; ++j) metric[i * d + j] += factor * mixing[k * d + j];
    }
  }
  return metric;
}

// Columns of N, each contiguous: column k holds N[i][k], i >= k. Right-looking Cholesky, so that the inner loop is an update
// of contiguous values.
std::vector<double> UnitColumns(std::vector<double> metric, std::size_t d) {
  for (std::size_t k = 0; k < d; ++k) {
    double* pivot_row = metric.data() + k * d;  // symmetric: row k of the rest is column k
    const double pivot = pivot_row[k];
    OSCAR_CHECK(pivot > 0);
    for (std::size_t i = k + 1; i < d; ++i) {
      const double factor = pivot_row[i] / pivot;
      double* row = metric.data() + i * d;
      for (std::size_t j = i; j < d; ++j) row[j] -= factor * pivot_row[j];
    }
    for (std::size_t i = k + 1; i < d; ++i) pivot_row[i] /= pivot;
    pivot_row[k] = 1;
  }
  return metric;
}

}  // namespace

ErrorFeedback DeriveErrorFeedback(int head_dim, std::span<const float> metric) {
  const auto d = static_cast<std::size_t>(head_dim);
  double mean = 0;  // of the diagonal of G: the mean weight, as Q is orthogonal
  for (const float weight : metric) mean += static_cast<double>(weight) / static_cast<double>(d);
  std::vector<double> weights;
  for (const float weight : metric) weights.push_back(static_cast<double>(weight) / mean);

  const std::vector<double> exact = MetricMatrix(head_dim, weights);
  const std::vector<double> columns = UnitColumns(exact, d);
  ErrorFeedback made;
  made.metric.assign(exact.begin(), exact.end());
  made.feedback.assign(d * d, 0.0f);
  for (std::size_t i = 0; i < d; ++i) {
    // Row i of the stored matrix is column i of N without its diagonal.
    for (std::size_t j = i + 1; j < d; ++j) made.feedback[i * d + j] = static_cast<float>(columns[i * d + j]);
    made.inverse_diagonal.push_back(static_cast<float>(1.0 / exact[i * d + i]));
  }
  return made;
}

}  // namespace oscar::profile
