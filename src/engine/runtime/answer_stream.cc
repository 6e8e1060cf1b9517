#include "src/engine/runtime/answer_stream.h"

#include <algorithm>
#include <chrono>
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
    : tokenizer_(tokenizer), max_tokens_(params.max_tokens), min_tokens_(params.min_tokens), ignore_end_(params.ignore_end),
      stop_tokens_(params.stop_tokens), is_greedy_(IsPlainGreedy(params.sampling)), sampler_(std::move(sampler)), decoder_(tokenizer, params.render_special, params.shown_tokens),
      stops_(params.stop, params.include_stop) {
  if (params.grammar != nullptr) matcher_.emplace(params.grammar);
  if (min_tokens_ == 0) return;
  enders_ = stop_tokens_;
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    if (tokenizer.IsEndOfGeneration(token)) enders_.push_back(token);
  }
}

Result<AnswerStream> AnswerStream::Create(const Tokenizer& tokenizer, const AnswerParams& params, int vocab_size,
                                          std::span<const int32_t> prompt) {
  OSCAR_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(params.sampling, vocab_size));
  for (const int32_t token : prompt) sampler.Accept(token, /*is_prompt=*/true);
  return AnswerStream(tokenizer, params, std::move(sampler));
}

Result<int32_t> AnswerStream::Draw(std::span<const float> logits) {
  TokenLimits limits;
  std::shared_ptr<const grammar::TokenMask> mask;
  if (matcher_) {
    const auto begin = std::chrono::steady_clock::now();
    OSCAR_ASSIGN_OR_RETURN(mask, matcher_->Mask());
    mask_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    limits.allowed = *mask;
  }
  // A grammar that is complete and cannot go on ends the answer before min_tokens.
  if (num_tokens_ < min_tokens_ && !(matcher_ && matcher_->complete())) limits.forbidden = enders_;
  return sampler_.Sample(logits, num_drawn_, limits);
}

bool AnswerStream::takes_best_token() const { return is_greedy_ && !matcher_ && num_tokens_ >= min_tokens_; }

std::optional<TokenDraw> AnswerStream::DrawElsewhere() {
  if (matcher_ || num_tokens_ < min_tokens_) return std::nullopt;
  return sampler_.DrawAt(num_drawn_);
}

Result<AnswerStep> AnswerStream::Next(std::span<const float> logits) {
  OSCAR_ASSIGN_OR_RETURN(const int32_t token, Draw(logits));
  return NextOf(token);
}

AnswerStep AnswerStream::NextOf(int32_t token) {
  AnswerStep step;
  step.token = token;
  ++num_drawn_;
  // Ids behind the tokenizer's are rows of the output layer that no text belongs to.
  const bool known = step.token < tokenizer_.vocab_size();
  const bool is_end = known && tokenizer_.IsEndOfGeneration(step.token);
  step.stop_token = std::ranges::find(stop_tokens_, step.token) != stop_tokens_.end();
  if (step.stop_token || (is_end && !ignore_end_)) {
    step.finish = FinishReason::kEndToken;
    step.text = Flush();
    return step;
  }
  sampler_.Accept(step.token, /*is_prompt=*/false);
  if (matcher_ && !is_end) matcher_->Accept(step.token);
  ++num_tokens_;
  if (known) step.text = stops_.Push(decoder_.Push(step.token));
  if (stops_.stopped()) {
    step.finish = FinishReason::kStopString;
    step.stop_string = stops_.matched();
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
