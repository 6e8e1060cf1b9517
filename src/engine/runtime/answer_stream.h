// AnswerStream: one answer as its tokens come. Draws them, makes text of them, and finds the answer's end: the one rule under
// `oscar run`, the evaluations and the server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/sample/sampler.h"
#include "src/engine/sample/sampling_params.h"
#include "src/engine/sample/stop_matcher.h"
#include "src/engine/text/grammar/matcher.h"
#include "src/engine/text/stream_decoder.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

enum class FinishReason { kEndToken, kStopString, kLength, kContextFull, kCancelled };
std::string_view FinishReasonName(FinishReason reason);

struct AnswerParams {
  SamplingParams sampling;
  int max_tokens = 0;               // 0: no limit
  int min_tokens = 0;               // before them no token ends the answer
  std::vector<std::string> stop;    // stop strings; not part of the text
  std::vector<int32_t> stop_tokens; // end the answer, as the model's own end tokens do
  bool include_stop = false;        // the stop string becomes part of the text
  bool ignore_end = false;          // go on after an end-of-generation token
  bool render_special = false;      // control tokens appear as their text
  std::vector<int32_t> shown_tokens; // these do in any case: what calls and reasoning are told by
  std::shared_ptr<const grammar::Grammar> grammar;  // what the answer must be; null: anything
};

struct AnswerStep {
  int32_t token = -1;
  std::string text;                    // whole UTF-8 that became certain with this token; may be empty
  std::optional<FinishReason> finish;  // kEndToken (the token is no part of the answer), kStopString or kLength
  bool stop_token = false;             // kEndToken by one of AnswerParams::stop_tokens
  std::string stop_string;             // of kStopString
};

class AnswerStream {
 public:
  // The tokenizer must outlive it. prompt: what the repetition penalty counts. Errors as Sampler::Create.
  static Result<AnswerStream> Create(const Tokenizer& tokenizer, const AnswerParams& params, int vocab_size, std::span<const int32_t> prompt);
  // The next token, from logits [vocab_size]. Not after a finish. Errors as Sampler::Sample and GrammarMatcher::Mask.
  Result<AnswerStep> Next(std::span<const float> logits);
  // Whether the next token is that of the largest logit whatever the others are; then NextOf takes it, as Next would.
  bool takes_best_token() const;
  // How Next would draw, for a draw where the logits are; NextOf takes its token. Nothing where form limits the tokens that may come.
  std::optional<TokenDraw> DrawElsewhere();
  AnswerStep NextOf(int32_t token);
  // What is held back, when an answer ends for a reason from outside.
  std::string Flush();
  uint64_t seed() const { return sampler_.seed(); }
  // Where the answer stands in its grammar, if it has one.
  const std::optional<grammar::GrammarMatcher>& matcher() const { return matcher_; }
  // Of the last token: how long it waited for its grammar's mask; nothing without a grammar.
  std::optional<double> mask_seconds() const { return mask_seconds_; }

 private:
  AnswerStream(const Tokenizer& tokenizer, const AnswerParams& params, Sampler sampler);

  Result<int32_t> Draw(std::span<const float> logits);

  const Tokenizer& tokenizer_;
  const int max_tokens_, min_tokens_;
  const bool ignore_end_;
  const std::vector<int32_t> stop_tokens_;
  const bool is_greedy_;
  std::vector<int32_t> enders_;  // all tokens that end the answer; only with min_tokens
  Sampler sampler_;
  std::optional<grammar::GrammarMatcher> matcher_;
  StreamDecoder decoder_;
  StopMatcher stops_;
  int num_tokens_ = 0;
  std::optional<double> mask_seconds_;
  int64_t num_drawn_ = 0;  // end tokens that are passed over included
};

}  // namespace oscar::engine
