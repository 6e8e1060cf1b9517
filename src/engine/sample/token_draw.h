// TokenDraw: how the token of one row of logits is drawn, as plain numbers, for a draw where the logits are (Ops::DrawTokens).
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::engine {

// What becomes of a token's logit before the draw: the bias is added, the penalty subtracted, then a positive logit divided by the
// repetition penalty and a negative one multiplied with it; all in f32.
struct LogitChange {
  int32_t token;
  float bias;
  float penalty;     // presence and frequency
  float repetition;  // 1: none
};

struct TokenDraw {
  float temperature = 0;  // 0: the largest logit, the lower token at equals; these four as in SamplingParams
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  double uniform = 0;     // [0, 1): which token of those that remain, most likely first
  std::vector<LogitChange> changes;  // one of a token at most

  bool is_plain_greedy() const { return temperature == 0 && changes.empty(); }
};

}  // namespace oscar::engine
