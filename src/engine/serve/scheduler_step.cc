// Scheduler: one step, from the rows that go into it to what came of them.
#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/engine/serve/http_server.h"
#include "src/engine/serve/running_request.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {
namespace {

double Average(double old, double value) { return old == 0 ? value : 0.8 * old + 0.2 * value; }

}  // namespace

void Scheduler::RunStep() {
  for (;;) {
    PlanStep();
    if (RunBatch()) break;
  }
  for (auto at = running_.begin(); at != running_.end();) {
    const auto running = at++;
    if (running->ended()) Retire(running);
  }
}

// Every answer's next token, then parts of prompts in order of admission.
void Scheduler::PlanStep() {
  members_.clear();
  batch_.clear();
  for (Running& running : running_) {
    if (!running.decoding()) continue;
    members_.push_back(&running);
    batch_.push_back({running.sequence, std::span<const int32_t>(running.history).last(1), false});
  }
  const int decodes = static_cast<int>(members_.size());
  int room = ChunkRoom(options_.step_tokens - decodes, decodes);
  for (Running& running : running_) {
    if (running.decoding() || room <= 0) continue;
    const int count = ChunkTokens(running, room);
    const bool scored = running.request.score_prompt && running.completion_tokens == 0;
    members_.push_back(&running);
    batch_.push_back({running.sequence, std::span<const int32_t>(running.history).subspan(static_cast<size_t>(running.computed), static_cast<size_t>(count)), scored});
    room -= count;
  }
}

// Tokens of prompts that a step with `decodes` answers may have beside them: whole pages that are expected to stay below the
// bound on the gap between tokens, and one page at least, so that prompts advance.
int Scheduler::ChunkRoom(int room, int decodes) const {
  if (options_.max_gap_ms <= 0 || decodes == 0 || prefill_second_per_token_ <= 0) return room;
  const double left = options_.max_gap_ms / 1000 - decode_step_seconds_;
  const double pages = std::clamp(left / prefill_second_per_token_ / kPageTokens, 1.0, 1.0 + room / kPageTokens);
  return std::min(room, static_cast<int>(pages) * kPageTokens);
}

int Scheduler::ChunkTokens(const Running& running, int room) const {
  int count = std::min(running.pending(), room);
  // Parts end on whole pages where they can: the next one then begins with a full one.
  const int over = (running.computed + count) % kPageTokens;
  if (count < running.pending() && count > over) count -= over;
  if (!running.stops.empty()) count = std::min(count, running.stops.front() - running.computed);
  return count;
}

std::optional<std::vector<TokenDraw>> Scheduler::PlanDraws() {
  // Whether the device draws depends on all members of a step: where answers may not, the host draws always.
  if (!engine_.model().draws_tokens() || engine_.options().deterministic) return std::nullopt;
  std::vector<TokenDraw> draws;
  for (size_t i = 0; i < members_.size(); ++i) {
    Running& running = *members_[i];
    if (batch_[i].all_logits) return std::nullopt;
    const bool has_token = running.pending() == static_cast<int>(batch_[i].tokens.size()) && running.request.answer.max_tokens > 0;
    if (!has_token) {
      draws.emplace_back();  // nobody reads it
      continue;
    }
    if (running.request.top_scores) return std::nullopt;
    std::optional<TokenDraw> draw = running.answer.DrawElsewhere();
    if (!draw) return std::nullopt;
    draws.push_back(*std::move(draw));
  }
  return draws;
}

// Runs the planned step; false when another one must be planned, because somebody had to leave.
bool Scheduler::RunBatch() {
  const Clock::time_point begin = Clock::now();
  const std::optional<std::vector<TokenDraw>> draws = PlanDraws();
  MakeMasksAhead();
  const Status status =
      draws ? engine_.model().ForwardDrawn(batch_, *cache_, *draws, &tokens_) : engine_.model().Forward(batch_, *cache_, &logits_);
  if (status.ok()) {
    Measure(std::chrono::duration<double>(Clock::now() - begin).count());
    const size_t vocab = static_cast<size_t>(engine_.model().config().vocab_size);
    const HttpBatch together;
    size_t row = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      const size_t rows = batch_[i].all_logits ? batch_[i].tokens.size() : 1;
      if (draws) {
        TakeRows(*members_[i], batch_[i], {{}, tokens_[i]});
      } else {
        TakeRows(*members_[i], batch_[i], {std::span(logits_).subspan(row * vocab, rows * vocab)});
      }
      row += rows;
    }
    return true;
  }
  // Nothing was committed.
  if (status.code() == StatusCode::kResourceExhausted && (Preempt() || DropParked())) return false;
  if (members_.size() > 1) {
    RunEachAlone();
  } else {
    Fail(*members_[0], status);
  }
  return true;
}

// The masks of the tokens that the step is about to give.
void Scheduler::MakeMasksAhead() {
  std::vector<grammar::GrammarMatcher> places;
  for (const Running* member : members_) {
    if (member->answer.matcher()) places.push_back(*member->answer.matcher());
  }
  if (!places.empty()) masks_ahead_.Make(std::move(places));
}

// One request's bad numbers must not end the others.
void Scheduler::RunEachAlone() {
  const std::vector<Running*> members = members_;
  const std::vector<StepSequence> batch = batch_;
  for (size_t i = 0; i < members.size(); ++i) {
    if (const Status status = engine_.model().Forward({&batch[i], 1}, *cache_, &logits_); !status.ok()) {
      Fail(*members[i], status);
    } else {
      TakeRows(*members[i], batch[i], {logits_});
    }
  }
}

void Scheduler::Fail(Running& running, const Status& error) {
  running.error = error;
  running.Emit({});
}

// Times of steps, for the bound on gaps, for Retry-After and for metrics.
void Scheduler::Measure(double seconds) {
  int decodes = 0, prompt_tokens = 0;
  for (size_t i = 0; i < members_.size(); ++i) (members_[i]->decoding() ? decodes : prompt_tokens) += static_cast<int>(batch_[i].tokens.size());
  if (prompt_tokens == 0) {
    decode_step_seconds_ = Average(decode_step_seconds_, seconds);
  } else if (prompt_tokens >= kPageTokens) {
    const double prompt_seconds = std::max(seconds - (decodes > 0 ? decode_step_seconds_ : 0), 0.1 * seconds);
    prefill_second_per_token_ = Average(prefill_second_per_token_, prompt_seconds / prompt_tokens);
  }
  const std::lock_guard lock(mutex_);
  (prompt_tokens > 0 ? counters_.prefill_steps : counters_.decode_steps).Observe(seconds);
  counters_.step_tokens.Observe(decodes + prompt_tokens);
  if (options_.max_gap_ms > 0 && decodes > 0 && seconds * 1000 > options_.max_gap_ms) ++counters_.gap_violations;
}

void Scheduler::TakeRows(Running& running, const StepSequence& part, const StepRows& rows) {
  if (part.all_logits) ScorePrompt(running, rows.logits);
  running.computed += static_cast<int>(part.tokens.size());
  if (!running.stops.empty() && running.stops.front() == running.computed) {
    const bool spare = std::ranges::find(running.spare_stops, running.computed) != running.spare_stops.end();
    PublishPrefix(running, spare ? PrefixRetention::kSpare : PrefixRetention::kNormal);
    running.stops.erase(running.stops.begin());
  }
  if (running.pending() == 0) TakeToken(running, rows);
}

// Row r of a prompt's part gives the probability of the token behind it.
void Scheduler::ScorePrompt(Running& running, std::span<const float> logits) {
  const size_t vocab = static_cast<size_t>(engine_.model().config().vocab_size), first = static_cast<size_t>(running.computed);
  const std::vector<int32_t>& prompt = running.request.prompt;
  for (size_t r = 0; r < logits.size() / vocab && first + r + 1 < prompt.size(); ++r) {
    running.prompt_scores.push_back(ScoreToken(logits.subspan(r * vocab, vocab), prompt[first + r + 1], running.request.top_scores.value_or(0)));
  }
}

// Samples the next token, unless it was, and says what came of it.
void Scheduler::TakeToken(Running& running, const StepRows& rows) {
  GenerationEvent event;
  event.prompt_scores = std::exchange(running.prompt_scores, {});
  if (running.request.answer.max_tokens == 0) {
    running.finish = FinishReason::kLength;
    return running.Emit(std::move(event));
  }
  const auto logits = rows.token < 0 ? rows.logits.last(static_cast<size_t>(engine_.model().config().vocab_size)) : std::span<const float>();
  const Result<AnswerStep> next = rows.token < 0 ? running.answer.Next(logits) : running.answer.NextOf(rows.token);
  if (!next.ok()) return Fail(running, next.status());
  event.tokens.push_back(next->token);
  event.text = next->text;
  if (running.request.top_scores) event.scores.push_back(ScoreToken(logits, next->token, *running.request.top_scores));
  const Clock::time_point now = Clock::now();
  ++running.completion_tokens;
  running.history.push_back(next->token);
  running.finish = next->finish;
  event.stop_string = next->stop_string;
  event.stop_token = next->stop_token;
  queue_.Charge(running.request.tenant, 2);
  {
    const std::lock_guard lock(mutex_);
    ++counters_.generated_tokens;
    if (const auto seconds = running.answer.mask_seconds()) counters_.grammar_masks.Observe(*seconds);
    if (running.completion_tokens == 1) {
      counters_.first_token.Observe(std::chrono::duration<double>(now - running.arrived).count());
    } else {
      const double gap = std::chrono::duration<double>(now - running.last_token).count();
      counters_.token_gap.Observe(gap);
      running.gaps.push_back(static_cast<float>(gap));
    }
  }
  if (running.completion_tokens == 1) running.first_token = now;
  running.last_token = now;
  running.Emit(std::move(event));
}

void Scheduler::PublishPrefix(Running& running, PrefixRetention retention) {
  if (!options_.prefix_cache) return;
  const auto tokens = std::span<const int32_t>(running.history).first(static_cast<size_t>(running.computed));
  OSCAR_CHECK(prefixes_.Publish(running.sequence, running.request.space, tokens, retention).ok());
}

void Scheduler::Retire(RunningPlace running) {
  // What was computed serves the next turn, also of a request that was cancelled; bad numbers serve nobody.
  if (running->error.ok() || running->error.code() == StatusCode::kCancelled) PublishPrefix(*running, PrefixRetention::kNormal);
  OSCAR_CHECK(cache_->Release(running->sequence).ok());
  CountEnd(*running);
  queue_.AddRunning(running->request.tenant, -1);
  running_.erase(running);
}

void Scheduler::CountEnd(const Running& running) {
  const RequestTimings timings = running.Timings();
  const std::lock_guard lock(mutex_);
  if (!running.error.ok()) {
    counters_.failed += running.error.code() != StatusCode::kCancelled;
    counters_.nonfinite += running.error.code() == StatusCode::kNonFinite;
    return;
  }
  ++(*running.finish == FinishReason::kLength ? counters_.finished_length : counters_.finished_stop);
  counters_.whole.Observe(std::chrono::duration<double>(Clock::now() - running.arrived).count());
  counters_.prefill.Observe(timings.prefill_seconds);
  counters_.decode.Observe(timings.decode_seconds);
  counters_.prompt_sizes.Observe(static_cast<double>(running.request.prompt.size()));
  counters_.answer_sizes.Observe(running.completion_tokens);
}

}  // namespace oscar::engine
