// The answer to a call of /inference/v1/generate: token ids in, token ids out (serving.md 5). No text: who asks has a tokenizer.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/engine/serve/completion_call.h"
#include "src/engine/serve/streamed_answer.h"

namespace oscar::engine {

class TokenAnswer final : public StreamedAnswer {
 public:
  // request_id: what the answer is called. The tokenizer must outlive it.
  TokenAnswer(const CompletionCall& call, const Tokenizer& tokenizer, std::string request_id, HttpFields fields, std::shared_ptr<HttpResponder> responder);

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<TokenScore> scores, prompt_scores;
    size_t sent = 0;            // how many of the tokens were streamed
    std::string finish_reason;  // empty until it ends
    std::optional<std::string> stop_string;
    std::optional<int32_t> stop_token;
    int cached_tokens = 0;
    nlohmann::ordered_json StopReason() const;
  };
  bool Take(int index, const GenerationEvent& event) override;
  // A request that somebody aborts has answered with what there was.
  bool MayBeAborted() const override { return true; }
  nlohmann::ordered_json ChoiceJson(int index, Choice& choice);
  std::string StreamEvent(nlohmann::ordered_json choices, bool with_usage) const;
  nlohmann::ordered_json Usage() const;

  const bool include_usage_, continuous_usage_;
  const std::optional<int> scores_, prompt_scores_;
  const size_t prompt_tokens_;
  const Tokenizer& tokenizer_;
  const std::string request_id_;
  std::deque<Choice> choices_;
};

}  // namespace oscar::engine
