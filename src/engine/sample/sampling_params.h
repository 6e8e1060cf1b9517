// Sampling settings of one request, with OpenAI's names and ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

struct SamplingParams {
  float temperature = 1.0f;        // 0: greedy
  int top_k = 0;                   // 0: off
  float top_p = 1.0f;              // (0, 1]
  float min_p = 0.0f;              // [0, 1]
  float repetition_penalty = 1.0f; // > 0; 1: off (as in CTRL: divides positive, multiplies negative logits)
  float presence_penalty = 0.0f;   // [-2, 2], OpenAI
  float frequency_penalty = 0.0f;  // [-2, 2], OpenAI
  int penalty_tokens = 0;          // how many last tokens the penalties look at; 0: prompt and output, all of it
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits of these tokens; [-100, 100]
  std::optional<uint64_t> seed;    // none: from the system
  uint32_t choice = 0;             // of several answers with one seed
};

// kInvalidArgument naming the field and its range.
Status ValidateSamplingParams(const SamplingParams& params);
// Whether the token of the largest logit is drawn, whatever came before and whatever the other logits are.
bool IsPlainGreedy(const SamplingParams& params);

}  // namespace oscar::engine
