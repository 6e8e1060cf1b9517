#include "src/engine/runtime/generate.h"

#include <algorithm>
#include <chrono>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool IsCancelled(const GenerateRequest& request) { return request.cancelled != nullptr && request.cancelled->load(); }

}  // namespace

Result<Conversation> Conversation::Start(Engine& engine, KvCache& cache) {
  OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, cache.NewSequence());
  return Conversation(engine, cache, sequence);
}

Status Conversation::Resume(const std::vector<int32_t>& prompt) {
  const size_t limit = std::min(tokens_.size(), prompt.size() - 1);
  size_t shared = 0;
  while (shared < limit && tokens_[shared] == prompt[shared]) ++shared;
  if (shared == tokens_.size()) return {};
  OSCAR_ASSIGN_OR_RETURN(const int kept, cache_->Truncate(sequence_, static_cast<int>(shared)));
  tokens_.resize(kept);
  return {};
}

Status Conversation::Prefill(const GenerateRequest& request, std::vector<float>* logits) {
  const size_t step = std::min<size_t>(kMaxStepTokens, cache_->config().max_step_tokens);
  while (tokens_.size() < request.prompt.size()) {
    if (IsCancelled(request)) return {StatusCode::kCancelled, "interrupted"};
    const size_t count = std::min(step, request.prompt.size() - tokens_.size());
    const StepSequence part{sequence_, std::span(request.prompt).subspan(tokens_.size(), count), false};
    const bool is_last = tokens_.size() + count == request.prompt.size();
    OSCAR_TRY(engine_->model().Forward({&part, 1}, *cache_, is_last ? logits : nullptr));
    tokens_.insert(tokens_.end(), part.tokens.begin(), part.tokens.end());
  }
  return {};
}

// Fills `best` where the logits need not be read here, else `logits`.
Status Conversation::Step(const StepSequence& step, AnswerStream& answer, std::vector<float>& logits, std::vector<int32_t>& best) {
  Model& model = engine_->model();
  if (answer.takes_best_token()) return model.ForwardGreedy({&step, 1}, *cache_, &best);
  if (model.draws_tokens()) {
    if (const std::optional<TokenDraw> draw = answer.DrawElsewhere()) return model.ForwardDrawn({&step, 1}, *cache_, {&*draw, 1}, &best);
  }
  return model.Forward({&step, 1}, *cache_, &logits);
}

Status Conversation::Decode(const GenerateRequest& request, std::vector<float>& logits, GenerateResult* result) {
  OSCAR_ASSIGN_OR_RETURN(AnswerStream answer, AnswerStream::Create(engine_->tokenizer(), request.answer,
                                                                   engine_->model().config().vocab_size, request.prompt));
  result->seed = answer.seed();
  const auto emit = [&](std::string_view text) {
    result->text += text;
    if (request.on_text && !text.empty()) request.on_text(text);
  };
  std::vector<int32_t> best;  // in place of the logits, where they do not matter
  for (;;) {
    if (IsCancelled(request)) {
      result->finish = FinishReason::kCancelled;
      break;
    }
    AnswerStep next;
    if (best.empty()) {
      OSCAR_ASSIGN_OR_RETURN(next, answer.Next(logits));
    } else {
      next = answer.NextOf(best[0]);
    }
    if (next.finish != FinishReason::kEndToken) result->tokens.push_back(next.token);
    emit(next.text);
    if (next.finish) {
      result->finish = *next.finish;
      return {};
    }
    if (static_cast<int>(tokens_.size()) >= cache_->config().max_tokens) {
      result->finish = FinishReason::kContextFull;
      break;
    }
    const StepSequence step{sequence_, {&next.token, 1}, false};
    best.clear();
    OSCAR_TRY(Step(step, answer, logits, best));
    tokens_.push_back(next.token);
  }
  emit(answer.Flush());
  return {};
}

Result<GenerateResult> Conversation::Generate(const GenerateRequest& request) {
  if (request.prompt.empty()) return {StatusCode::kInvalidArgument, "the prompt has no tokens"};
  const int64_t room = cache_->config().max_tokens;
  if (static_cast<int64_t>(request.prompt.size()) > room) {
    return {StatusCode::kInvalidArgument, "the prompt has " + std::to_string(request.prompt.size()) +
                                              " tokens, the context holds " + std::to_string(room) + " (raise --ctx)"};
  }
  GenerateResult result;
  result.prompt_tokens = static_cast<int>(request.prompt.size());
  OSCAR_TRY(Resume(request.prompt));
  result.cached_tokens = num_tokens();
  std::vector<float> logits;
  auto start = std::chrono::steady_clock::now();
  if (Status status = Prefill(request, &logits); !status.ok()) {
    if (status.code() != StatusCode::kCancelled) return status;
    result.finish = FinishReason::kCancelled;
    return result;
  }
  result.prefill_seconds = SecondsSince(start);
  start = std::chrono::steady_clock::now();
  OSCAR_TRY(Decode(request, logits, &result));
  result.decode_seconds = SecondsSince(start);
  return result;
}

}  // namespace oscar::engine
