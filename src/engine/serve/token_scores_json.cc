#include "src/engine/serve/token_scores_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "src/engine/runtime/text_source.h"

namespace oscar::engine {
namespace {

using nlohmann::ordered_json;

// None of ids behind the tokenizer's: rows of the output layer that no text belongs to.
std::string BytesOf(const Tokenizer& tokenizer, int32_t token, bool render_special) {
  return token < tokenizer.vocab_size() ? tokenizer.TokenBytes(token, render_special) : std::string();
}

bool IsText(const std::string& bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

ordered_json ChatEntry(const Tokenizer& tokenizer, const TokenProbability& scored) {
  const std::string bytes = BytesOf(tokenizer, scored.token, /*render_special=*/true);
  ordered_json numbers = ordered_json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<uint8_t>(byte));
  return {{"token", TokenText(tokenizer, scored.token)}, {"logprob", PrintableScore(scored.log_probability)}, {"bytes", std::move(numbers)}};
}

}  // namespace

double PrintableScore(double log_probability) { return std::isfinite(log_probability) ? log_probability : -9999.0; }

std::string TokenText(const Tokenizer& tokenizer, int32_t token) {
  const std::string bytes = BytesOf(tokenizer, token, /*render_special=*/true);
  if (IsText(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) {
    char escaped[5];
    std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(byte)));
    text += escaped;
  }
  return text;
}

ordered_json ChatScores(const Tokenizer& tokenizer, std::span<const TokenScore> scores, int top) {
  ordered_json content = ordered_json::array();
  for (const TokenScore& score : scores) {
    ordered_json entry = ChatEntry(tokenizer, score.token);
    entry["top_logprobs"] = ordered_json::array();
    for (const TokenProbability& other : std::span(score.top).first(std::min(score.top.size(), static_cast<size_t>(top)))) entry["top_logprobs"].push_back(ChatEntry(tokenizer, other));
    content.push_back(std::move(entry));
  }
  return content;
}

ordered_json PromptScores(const Tokenizer& tokenizer, std::span<const TokenScore> scores, int top) {
  ordered_json entries = ordered_json::array({nullptr});
  for (const TokenScore& score : scores) {
    ordered_json entry = ordered_json::object();
    const auto add = [&](const TokenProbability& scored, int rank) {
      entry[std::to_string(scored.token)] = {{"logprob", PrintableScore(scored.log_probability)}, {"rank", rank}, {"decoded_token", TokenText(tokenizer, scored.token)}};
    };
    for (int i = 0; i < std::min<int>(top, static_cast<int>(score.top.size())); ++i) add(score.top[static_cast<size_t>(i)], i + 1);
    if (!entry.contains(std::to_string(score.token.token))) add(score.token, score.rank);
    entries.push_back(std::move(entry));
  }
  return entries;
}

void CompletionScores::AddUnscored(int32_t token) {
  entries_.push_back({token, false, {}, offset_});
  for (const char byte : BytesOf(tokenizer_, token, /*render_special=*/false)) offset_ += (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
}

void CompletionScores::Add(const TokenScore& score) {
  AddUnscored(score.token.token);
  entries_.back().scored = true;
  entries_.back().score = score;
}

ordered_json CompletionScores::Arrays(size_t first) const {
  ordered_json tokens = ordered_json::array(), own = ordered_json::array(), top = ordered_json::array(), offsets = ordered_json::array();
  for (size_t i = first; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    tokens.push_back(TokenText(tokenizer_, entry.token));
    offsets.push_back(entry.offset);
    if (!entry.scored) {
      own.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    own.push_back(PrintableScore(entry.score.token.log_probability));
    ordered_json best = ordered_json::object();
    const auto add = [&](const TokenProbability& scored) {
      // Of two tokens with the same text the likelier one stays.
      const std::string text = TokenText(tokenizer_, scored.token);
      if (!best.contains(text)) best[text] = PrintableScore(scored.log_probability);
    };
    for (const TokenProbability& scored : std::span(entry.score.top).first(std::min(entry.score.top.size(), top_))) add(scored);
    add(entry.score.token);
    top.push_back(std::move(best));
  }
  return {{"tokens", std::move(tokens)}, {"token_logprobs", std::move(own)}, {"top_logprobs", std::move(top)}, {"text_offset", std::move(offsets)}};
}

}  // namespace oscar::engine
