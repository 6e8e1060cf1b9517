#include "src/engine/serve/token_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "src/engine/serve/token_scores_json.h"

namespace oscar::engine {

using nlohmann::ordered_json;

TokenAnswer::TokenAnswer(const CompletionCall& call, const Tokenizer& tokenizer, std::string request_id, HttpFields fields, std::shared_ptr<HttpResponder> responder)
    : StreamedAnswer(call.stream, std::move(fields), std::move(responder)), include_usage_(call.include_usage), continuous_usage_(call.continuous_usage),
      scores_(call.scores), prompt_scores_(call.prompt_scores), prompt_tokens_(call.requests.at(0).prompt.size()), tokenizer_(tokenizer),
      request_id_(std::move(request_id)), choices_(call.requests.size()) {}

bool TokenAnswer::Take(int index, const GenerationEvent& event) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  const bool begins = choice.tokens.empty();
  choice.cached_tokens = std::max(choice.cached_tokens, event.cached_tokens);
  choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  if (scores_) choice.scores.insert(choice.scores.end(), event.scores.begin(), event.scores.end());
  if (prompt_scores_) choice.prompt_scores.insert(choice.prompt_scores.end(), event.prompt_scores.begin(), event.prompt_scores.end());
  if (event.finish == FinishReason::kStopString) choice.stop_string = event.stop_string;
  if (event.stop_token && !event.tokens.empty()) choice.stop_token = event.tokens.back();
  if (event.finish) {
    const bool stopped = *event.finish == FinishReason::kEndToken || *event.finish == FinishReason::kStopString;
    choice.finish_reason = stopped ? "stop" : "length";
  } else if (!event.error.ok()) {
    choice.finish_reason = "abort";
  }
  const bool complete = std::ranges::none_of(choices_, [](const Choice& one) { return one.finish_reason.empty(); });
  if (stream_) {
    BeginStream();
    ordered_json made = ChoiceJson(index, choice);
    if (begins && prompt_scores_) made["prompt_logprobs"] = PromptScores(tokenizer_, choice.prompt_scores, *prompt_scores_);
    Write(StreamEvent(ordered_json::array({std::move(made)}), continuous_usage_));
    if (complete) EndStream(include_usage_ ? StreamEvent(ordered_json::array(), /*with_usage=*/true) : "");
  } else if (complete) {
    ordered_json body = {{"request_id", request_id_}, {"choices", ordered_json::array()}};
    for (size_t i = 0; i < choices_.size(); ++i) body["choices"].push_back(ChoiceJson(static_cast<int>(i), choices_[i]));
    if (prompt_scores_) body["prompt_logprobs"] = PromptScores(tokenizer_, choices_[0].prompt_scores, *prompt_scores_);
    body["usage"] = Usage();
    SendWhole(body);
  }
  return complete;
}

ordered_json TokenAnswer::Choice::StopReason() const {
  if (stop_string) return *stop_string;
  if (stop_token) return *stop_token;
  return nullptr;
}

// With the tokens that were not given out yet, and their scores, one for each.
ordered_json TokenAnswer::ChoiceJson(int index, Choice& choice) {
  const size_t first = std::exchange(choice.sent, choice.tokens.size());
  ordered_json made = {{"index", index}, {"token_ids", std::vector<int32_t>(choice.tokens.begin() + static_cast<std::ptrdiff_t>(first), choice.tokens.end())}};
  made["logprobs"] = nullptr;
  if (scores_) {
    const std::span<const TokenScore> scores = std::span(choice.scores).subspan(std::min(first, choice.scores.size()));
    made["logprobs"] = {{"content", ChatScores(tokenizer_, scores, *scores_)}, {"refusal", nullptr}};
  }
  made["finish_reason"] = choice.finish_reason.empty() ? ordered_json() : ordered_json(choice.finish_reason);
  if (!choice.finish_reason.empty()) made["stop_reason"] = choice.StopReason();
  return made;
}

std::string TokenAnswer::StreamEvent(ordered_json choices, bool with_usage) const {
  ordered_json chunk = {{"request_id", request_id_}, {"choices", std::move(choices)}};
  if (include_usage_) chunk["usage"] = with_usage ? Usage() : ordered_json();
  return "data: " + JsonText(chunk) + "\n\n";
}

ordered_json TokenAnswer::Usage() const {
  size_t completion = 0;
  for (const Choice& choice : choices_) completion += choice.tokens.size();
  return {{"prompt_tokens", prompt_tokens_}, {"completion_tokens", completion}, {"total_tokens", prompt_tokens_ + completion},
          {"prompt_tokens_details", {{"cached_tokens", choices_[0].cached_tokens}}}, {"completion_tokens_details", {{"reasoning_tokens", 0}}}};
}

}  // namespace oscar::engine
