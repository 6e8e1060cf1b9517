// Sampler: one request's way from logits to a token. The draw depends on (seed, position) alone, never on the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "oscar/result.h"
#include "src/engine/sample/sampling_params.h"

namespace oscar::engine {

struct TokenProbability {
  int32_t token = 0;
  float log_probability = 0;  // natural log, of the softmax of the raw logits at temperature 1
};

class Sampler {
 public:
  // kInvalidArgument as ValidateSamplingParams.
  static Result<Sampler> Create(const SamplingParams& params, int vocab_size);
  // Tokens that the penalties count; call for prompt tokens and for each token generated.
  void Accept(int32_t token, bool is_prompt);
  // Order: penalties, temperature, top-k, top-p, min-p, draw. kNonFinite when a logit is NaN or all are -inf. Ties in greedy
  // go to the lower id. logits: [vocab_size], not changed.
  Result<int32_t> Sample(std::span<const float> logits, int64_t position);
  uint64_t seed() const { return seed_; }  // the one in use, to be reported

 private:
  Sampler() = default;
  SamplingParams params_;
  uint64_t seed_ = 0;
  std::vector<int32_t> history_;
  std::vector<bool> history_is_prompt_;
  std::vector<float> scratch_;
  std::vector<int32_t> order_;
};

// The n most likely tokens with their log-probabilities, most likely first.
std::vector<TokenProbability> TopLogProbabilities(std::span<const float> logits, int n);

}  // namespace oscar::engine
