// Sampling settings of one request, with OpenAI's names and ranges.
#pragma once

#include <cstdint>
#include <optional>

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
  std::optional<uint64_t> seed;    // none: from the system
};

// kInvalidArgument naming the field and its range.
Status ValidateSamplingParams(const SamplingParams& params);

}  // namespace oscar::engine
