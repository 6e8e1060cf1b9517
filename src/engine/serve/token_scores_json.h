// Log-probabilities in the two shapes of the OpenAI API (serving.md 5 and 7).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/engine/sample/sampler.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

// A token as text: its own bytes, or "bytes:\xNN..." when they are not UTF-8.
std::string TokenText(const Tokenizer& tokenizer, int32_t token);

// A log-probability for JSON, which has no infinity: -9999 instead.
double PrintableScore(double log_probability);

// Entries of logprobs.content of a chat answer: token, logprob, bytes, and `top` of the likeliest as top_logprobs.
nlohmann::ordered_json ChatScores(const Tokenizer& tokenizer, std::span<const TokenScore> scores, int top);

// prompt_logprobs: one entry per token of the prompt, the first null, the others with the `top` likeliest and the token itself by their ids.
nlohmann::ordered_json PromptScores(const Tokenizer& tokenizer, std::span<const TokenScore> scores, int top);

// The four arrays of a text completion, grown as the tokens come. Offsets count Unicode code points.
class CompletionScores {
 public:
  // top: how many of the likeliest tokens stand beside each.
  CompletionScores(const Tokenizer& tokenizer, int top) : tokenizer_(tokenizer), top_(static_cast<size_t>(top)) {}
  // A token that nothing is known of: the first one of a prompt.
  void AddUnscored(int32_t token);
  void Add(const TokenScore& score);
  // tokens, token_logprobs, top_logprobs, text_offset of the entries from `first` on.
  nlohmann::ordered_json Arrays(size_t first) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    int32_t token;
    bool scored;
    TokenScore score;
    size_t offset;
  };
  const Tokenizer& tokenizer_;
  const size_t top_;
  std::vector<Entry> entries_;
  size_t offset_ = 0;
};

}  // namespace oscar::engine
