// What logits say of one position: log-probability of the token that came, divergence from the exact logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oscar::engine {

// -log softmax(logits)[target] in nats.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

// KL(softmax(exact) || softmax(other)) in nats, from log-softmax in double; >= 0 up to rounding.
double KlDivergence(std::span<const float> exact, std::span<const float> other);

// Index of the largest logit; the lower one on a tie.
int32_t ArgMax(std::span<const float> logits);

// Mean, median and 99th percentile (nearest rank) of some values. All NaN-free; empty gives zeros.
struct Summary {
  double mean = 0, median = 0, p99 = 0, max = 0;
};
Summary Summarize(std::vector<double> values);

}  // namespace oscar::engine
