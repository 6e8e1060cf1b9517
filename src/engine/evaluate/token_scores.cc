#include "src/engine/evaluate/token_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace oscar::engine {
namespace {

// log sum exp, in double.
double LogSumExp(std::span<const float> logits) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - maximum));
  return maximum + std::log(sum);
}

}  // namespace

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  return LogSumExp(logits) - logits[target];
}

double KlDivergence(std::span<const float> exact, std::span<const float> other) {
  const double exact_lse = LogSumExp(exact), other_lse = LogSumExp(other);
  double divergence = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_lse;
    if (log_p > -60) divergence += std::exp(log_p) * (log_p - (other[i] - other_lse));  // e^-60 adds nothing in double
  }
  return divergence;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const size_t rank99 = std::min(n - 1, static_cast<size_t>(std::ceil(0.99 * static_cast<double>(n))) - 1);
  return {std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n),
          n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values[rank99], values.back()};
}

}  // namespace oscar::engine
