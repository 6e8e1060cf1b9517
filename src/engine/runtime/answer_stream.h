// AnswerStream: one answer as its tokens come. Draws them, makes text of them, and finds the answer's end: the one rule under
// `oscar run`, the evaluations and the server.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/sample/sampler.h"
#include "src/engine/sample/sampling_params.h"
#include "src/engine/sample/stop_matcher.h"
#include "src/engine/text/stream_decoder.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

enum class FinishReason { kEndToken, kStopString, kLength, kContextFull, kCancelled };
std::string_view FinishReasonName(FinishReason reason);

struct AnswerParams {
  SamplingParams sampling;
  int max_tokens = 0;             // 0: no limit
  std::vector<std::string> stop;  // stop strings; not part of the text
  bool ignore_end = false;        // go on after an end-of-generation token
};

struct AnswerStep {
  int32_t token = -1;
  std::string text;                    // whole UTF-8 that became certain with this token; may be empty
  std::optional<FinishReason> finish;  // kEndToken (the token is no part of the answer), kStopString or kLength
};

class AnswerStream {
 public:
  // The tokenizer must outlive it. prompt: what the repetition penalty counts. Errors as Sampler::Create.
  static Result<AnswerStream> Create(const Tokenizer& tokenizer, const AnswerParams& params, int vocab_size, std::span<const int32_t> prompt);
  // The next token, from logits [vocab_size] at `position` of the sequence. Not after a finish. Errors as Sampler::Sample.
  Result<AnswerStep> Next(std::span<const float> logits, int64_t position);
  // What is held back, when an answer ends for a reason from outside.
  std::string Flush();
  uint64_t seed() const { return sampler_.seed(); }

 private:
  AnswerStream(const Tokenizer& tokenizer, const AnswerParams& params, Sampler sampler);

  const Tokenizer& tokenizer_;
  const int max_tokens_;
  const bool ignore_end_;
  Sampler sampler_;
  StreamDecoder decoder_;
  StopMatcher stops_;
  int num_tokens_ = 0;
};

}  // namespace oscar::engine
