#include "src/engine/runtime/answer_stream.h"

#include <utility>

#include "src/base/status_macros.h"

namespace oscar::engine {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEndToken: return "end token";
    case FinishReason::kStopString: return "stop string";
    case FinishReason::kLength: return "length";
    case FinishReason::kContextFull: return "context full";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "unknown";
}

AnswerStream::AnswerStream(const Tokenizer& tokenizer, const AnswerParams& params, Sampler sampler)
    : tokenizer_(tokenizer), max_tokens_(params.max_tokens), ignore_end_(params.ignore_end), sampler_(std::move(sampler)),
      decoder_(tokenizer), stops_(params.stop) {}

Result<AnswerStream> AnswerStream::Create(const Tokenizer& tokenizer, const AnswerParams& params, int vocab_size,
                                          std::span<const int32_t> prompt) {
  OSCAR_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(params.sampling, vocab_size));
  for (const int32_t token : prompt) sampler.Accept(token, /*is_prompt=*/true);
  return AnswerStream(tokenizer, params, std::move(sampler));
}

Result<AnswerStep> AnswerStream::Next(std::span<const float> logits, int64_t position) {
  AnswerStep step;
  OSCAR_ASSIGN_OR_RETURN(step.token, sampler_.Sample(logits, position));
  if (!ignore_end_ && tokenizer_.IsEndOfGeneration(step.token)) {
    step.finish = FinishReason::kEndToken;
    step.text = Flush();
    return step;
  }
  sampler_.Accept(step.token, /*is_prompt=*/false);
  ++num_tokens_;
  step.text = stops_.Push(decoder_.Push(step.token));
  if (stops_.stopped()) {
    step.finish = FinishReason::kStopString;
  } else if (max_tokens_ > 0 && num_tokens_ >= max_tokens_) {
    step.finish = FinishReason::kLength;
    step.text += Flush();
  }
  return step;
}

std::string AnswerStream::Flush() {
  std::string text = stops_.Push(decoder_.Finish());
  return text + stops_.Finish();
}

}  // namespace oscar::engine
