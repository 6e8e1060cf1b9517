#include "src/engine/serve/sampling_fields.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace oscar::engine {
namespace {

using nlohmann::json;

constexpr size_t kMostBiases = 1024, kMostStops = 16, kMostStopBytes = 256, kMostStopTokens = 64;

void ReadBiases(RequestFields& fields, int vocab_size, SamplingParams* sampling) {
  const json* biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  const auto wrong = [&](const std::string& what) { fields.Fail(ApiError::Invalid("invalid_value", "logit_bias", "logit_bias: " + what)); };
  if (biases->size() > kMostBiases) return wrong(fmt::format("at most {} entries", kMostBiases));
  for (const auto& [key, value] : biases->items()) {
    const bool digits = !key.empty() && key.size() <= 9 && std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::stoi(key) >= vocab_size) return wrong(fmt::format("keys are token ids from 0 to {}, not \"{}\"", vocab_size - 1, Quoted(key)));
    if (!value.is_number() || value < -100 || value > 100) return wrong("values are numbers from -100 to 100");
    sampling->logit_bias.emplace_back(std::stoi(key), value.get<float>());
  }
}

}  // namespace

nlohmann::ordered_json SamplingJson(const AnswerParams& answer) {
  const SamplingParams& sampling = answer.sampling;
  nlohmann::ordered_json biases = nlohmann::ordered_json::object();
  for (const auto& [token, bias] : sampling.logit_bias) biases[std::to_string(token)] = bias;
  return {{"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"top_k", sampling.top_k},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"repetition_penalty", sampling.repetition_penalty},
          {"logit_bias", std::move(biases)},
          {"seed", static_cast<int64_t>(sampling.seed.value_or(0))},
          {"max_tokens", answer.max_tokens},
          {"min_tokens", answer.min_tokens},
          {"stop", answer.stop},
          {"stop_token_ids", answer.stop_tokens},
          {"include_stop_str_in_output", answer.include_stop},
          {"ignore_eos", answer.ignore_end},
          {"skip_special_tokens", !answer.render_special}};
}

void ReadSampling(RequestFields& fields, int vocab_size, AnswerParams* answer) {
  SamplingParams& sampling = answer->sampling;
  const auto set = [](float& to, std::optional<double> value) {
    if (value) to = static_cast<float>(*value);
  };
  set(sampling.temperature, fields.Number("temperature", 0, 2));
  if (sampling.temperature < 1e-4f) sampling.temperature = 0;
  set(sampling.top_p, fields.Number("top_p", 0, 1));
  if (sampling.top_p == 0) {  // keeps the best token only
    sampling.top_p = 1;
    sampling.temperature = 0;
  }
  set(sampling.min_p, fields.Number("min_p", 0, 1));
  set(sampling.presence_penalty, fields.Number("presence_penalty", -2, 2));
  set(sampling.frequency_penalty, fields.Number("frequency_penalty", -2, 2));
  set(sampling.repetition_penalty, fields.Number("repetition_penalty", 1e-6, 10));
  if (const auto top_k = fields.Integer("top_k", -1, std::numeric_limits<int32_t>::max())) sampling.top_k = std::max<int>(0, static_cast<int>(*top_k));
  if (const auto seed = fields.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    sampling.seed = static_cast<uint64_t>(*seed);
  }
  ReadBiases(fields, vocab_size, &sampling);
  if (auto stop = fields.Texts("stop", kMostStops, kMostStopBytes)) answer->stop = *std::move(stop);
  answer->stop_tokens = fields.Tokens("stop_token_ids", kMostStopTokens, vocab_size);
  answer->include_stop = fields.Bool("include_stop_str_in_output").value_or(false);
  answer->ignore_end = fields.Bool("ignore_eos").value_or(false);
  answer->render_special = !fields.Bool("skip_special_tokens").value_or(true);
  answer->min_tokens = static_cast<int>(fields.Integer("min_tokens", 0, std::numeric_limits<int32_t>::max()).value_or(0));
}

}  // namespace oscar::engine
