#include "src/engine/sample/sampling_params.h"

#include <cmath>
#include <string>

namespace oscar::engine {
namespace {

Status OutOfRange(const char* field, double value, const char* range) {
  std::string text = std::to_string(value);
  return {StatusCode::kInvalidArgument, std::string(field) + " " + text + ": must be " + range};
}

}  // namespace

// Written so that NaN fails every comparison and is refused.
Status ValidateSamplingParams(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= 100)) {
    return OutOfRange("temperature", params.temperature, "between 0 and 100");
  }
  if (params.top_k < 0) return OutOfRange("top_k", params.top_k, "0 (off) or positive");
  if (!(params.top_p > 0 && params.top_p <= 1)) return OutOfRange("top_p", params.top_p, "above 0 and at most 1");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return OutOfRange("min_p", params.min_p, "between 0 and 1");
  if (!(params.repetition_penalty > 0 && params.repetition_penalty <= 100)) {
    return OutOfRange("repetition_penalty", params.repetition_penalty, "above 0 and at most 100");
  }
  if (!(std::abs(params.presence_penalty) <= 2)) {
    return OutOfRange("presence_penalty", params.presence_penalty, "between -2 and 2");
  }
  if (!(std::abs(params.frequency_penalty) <= 2)) {
    return OutOfRange("frequency_penalty", params.frequency_penalty, "between -2 and 2");
  }
  if (params.penalty_tokens < 0) return OutOfRange("penalty_tokens", params.penalty_tokens, "0 (all) or positive");
  for (const auto& [token, bias] : params.logit_bias) {
    if (!(std::abs(bias) <= 100)) return OutOfRange("logit_bias", bias, "between -100 and 100");
  }
  return {};
}

bool IsPlainGreedy(const SamplingParams& params) {
  return params.temperature == 0 && params.repetition_penalty == 1 && params.presence_penalty == 0 && params.frequency_penalty == 0 &&
         params.logit_bias.empty();
}

}  // namespace oscar::engine
