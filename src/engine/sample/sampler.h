// Sampler: one request's way from logits to a token. The draw depends on (seed, choice, position) alone, never on the batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "oscar/result.h"
#include "src/engine/sample/sampling_params.h"
#include "src/engine/sample/token_draw.h"

namespace oscar::engine {

struct TokenProbability {
  int32_t token = 0;
  double log_probability = 0;  // natural log, of the softmax of the raw logits at temperature 1
};

// A token that came, and the most likely ones in its place.
struct TokenScore {
  TokenProbability token;
  int rank = 0;                       // 1: none is more likely
  std::vector<TokenProbability> top;  // most likely first; ties: lower id
};

// Which tokens may come, for reasons of form and not of taste.
struct TokenLimits {
  std::span<const uint32_t> allowed;    // bit t % 32 of word t / 32, tokens behind the end are not allowed; empty: all are
  std::span<const int32_t> forbidden;
};

class Sampler {
 public:
  // kInvalidArgument as ValidateSamplingParams, and for a logit bias of a token outside the vocabulary.
  static Result<Sampler> Create(const SamplingParams& params, int vocab_size);
  // Tokens that the penalties count; call for prompt tokens and for each token generated.
  void Accept(int32_t token, bool is_prompt);
  // Order: logit bias, limits, penalties, temperature, top-k, top-p, min-p, draw. The repetition penalty counts prompt and output,
  // the other two the output only. kNonFinite when a logit is NaN or +inf, or none that may come is finite. Ties go to the lower id.
  // logits: [vocab_size], not changed; kInvalidArgument for another size. `position`: of the token in the answer, from 0 on.
  Result<int32_t> Sample(std::span<const float> logits, int64_t position, const TokenLimits& limits = {});
  // What Sample without limits does at this position, for another to do.
  TokenDraw DrawAt(int64_t position);
  uint64_t seed() const { return seed_; }  // the one in use, to be reported

 private:
  struct HistoryEntry {
    int32_t token;
    bool is_prompt;
  };
  struct Candidate {
    float logit;
    int32_t token;
  };
  Sampler() = default;
  void ApplyLimits(const TokenLimits& limits);
  std::vector<LogitChange> Changes();  // by logit bias and penalties
  double Weight(const Candidate& candidate) const;  // its probability up to a factor; 1 for the best
  void SelectCandidates();                          // fills candidates_ with what top-k leaves
  // Sorts candidates_, most likely first (ties: lower id), at least as far as `count`. A draw reads some dozens of 152K
  // tokens; sorting all of them costs more than the rest of sampling.
  void SortTo(size_t count);
  int32_t Draw(int64_t position);

  SamplingParams params_;
  int vocab_size_ = 0;
  uint64_t seed_ = 0;
  std::vector<HistoryEntry> history_;
  std::vector<float> logits_;             // [vocab_size], after penalties
  std::vector<uint32_t> places_;          // [vocab_size], of a token in Changes, from 1 on; zero between calls
  std::vector<Candidate> candidates_;
  size_t num_sorted_ = 0;
  float best_ = 0;                        // the largest of logits_
};

// The score of `token` under logits [vocab_size], with the n most likely tokens. Where the token is one of them, both numbers are the
// same double. Precondition: 0 <= token < vocab_size, no NaN, and a finite logit.
TokenScore ScoreToken(std::span<const float> logits, int32_t token, int n);

}  // namespace oscar::engine
