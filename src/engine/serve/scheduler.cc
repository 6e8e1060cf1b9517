#include "src/engine/serve/scheduler.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine {

struct Scheduler::Active {
  Active(Waiting waiting, SequenceId at, AnswerStream stream)
      : id(waiting.id), request(std::move(waiting.request)), sink(std::move(waiting.sink)), sequence(at), answer(std::move(stream)) {}

  uint64_t id;
  GenerationRequest request;
  GenerationSink sink;
  SequenceId sequence;
  AnswerStream answer;
  std::vector<int32_t> tokens;  // in the cache
  int32_t next_token = -1;      // sampled, not in the cache yet; -1 while the prompt is computed
  std::vector<TokenScore> prompt_scores;
  int cached_tokens = 0, completion_tokens = 0;
  Status error;                 // not OK: to be retired
  std::optional<FinishReason> finish;

  bool decoding() const { return next_token >= 0; }
  bool ended() const { return finish.has_value() || !error.ok(); }
  int64_t reserved_tokens() const { return static_cast<int64_t>(request.prompt.size()) + request.answer.max_tokens; }
  void Emit(GenerationEvent event) const {
    event.prompt_tokens = static_cast<int>(request.prompt.size());
    event.cached_tokens = cached_tokens;
    event.completion_tokens = completion_tokens;
    event.seed = answer.seed();
    event.finish = finish;
    event.error = error;
    sink(event);
  }
};

Result<std::unique_ptr<Scheduler>> Scheduler::Start(Engine& engine, const KvSetup& setup, const SchedulerOptions& options) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (options.max_running < 1) return invalid("--max-running " + std::to_string(options.max_running) + ": must be at least 1");
  if (options.max_queued < 0) return invalid("--max-queued-requests " + std::to_string(options.max_queued) + ": must not be negative");
  if (options.step_tokens < options.max_running || options.step_tokens > kMaxStepTokens) {
    return invalid("--step-tokens " + std::to_string(options.step_tokens) + ": must be between --max-running (" +
                   std::to_string(options.max_running) + ") and " + std::to_string(kMaxStepTokens));
  }
  if (options.kv_tokens < engine.context()) {
    return invalid("--kv-tokens " + std::to_string(options.kv_tokens) + ": less than the context of " + std::to_string(engine.context()));
  }
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, engine.NewCache(setup, options.kv_tokens, options.max_running));
  return std::unique_ptr<Scheduler>(new Scheduler(engine, std::move(cache), options));
}

Scheduler::Scheduler(Engine& engine, std::unique_ptr<KvCache> cache, const SchedulerOptions& options)
    : engine_(engine), cache_(std::move(cache)), options_(options), context_(engine.context()) {
  Publish();
  thread_ = std::thread([this] { Loop(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<uint64_t> Scheduler::Submit(GenerationRequest request, GenerationSink sink) {
  OSCAR_TRY(ValidateSamplingParams(request.answer.sampling));
  if (request.prompt.empty()) return Status(StatusCode::kInvalidArgument, "the prompt has no tokens");
  const int64_t needed = static_cast<int64_t>(request.prompt.size()) + request.answer.max_tokens;
  if (request.answer.max_tokens < (request.score_prompt ? 0 : 1) || needed > context_) {
    return Status(StatusCode::kInvalidArgument, "the prompt has " + std::to_string(request.prompt.size()) + " tokens and the answer up to " +
                                                    std::to_string(request.answer.max_tokens) + "; the context holds " + std::to_string(context_));
  }
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Status(StatusCode::kFailedPrecondition, "the server is shutting down");
    if (static_cast<int>(waiting_.size()) >= options_.max_queued + options_.max_running) {
      return Status(StatusCode::kResourceExhausted, "the queue is full: " + std::to_string(waiting_.size()) + " requests wait");
    }
    id = next_id_++;
    waiting_.push_back({id, std::move(request), std::move(sink)});
    ++snapshot_.waiting;
  }
  wake_.notify_all();
  return id;
}

void Scheduler::Cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  wake_.notify_all();
}

SchedulerSnapshot Scheduler::snapshot() const {
  const std::lock_guard lock(mutex_);
  SchedulerSnapshot copy = snapshot_;
  copy.step_age_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - last_turn_).count();
  return copy;
}

void Scheduler::Loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      last_turn_ = std::chrono::steady_clock::now();
      // A pause of a second at most, so that an idle loop also shows that it lives.
      wake_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_ || !active_.empty() || !waiting_.empty() || !cancelled_.empty(); });
      if (stopping_) break;
    }
    TakeCancelled();
    Admit();
    if (!active_.empty()) RunStep();
    Publish();
  }
  const Status stopped(StatusCode::kCancelled, "the server is shutting down");
  for (Active& active : active_) {
    active.error = stopped;
    active.Emit({});
  }
  for (Waiting& waiting : waiting_) {
    GenerationEvent event;
    event.error = stopped;
    waiting.sink(event);
  }
}

void Scheduler::TakeCancelled() {
  std::vector<uint64_t> ids;
  std::vector<Waiting> dropped;
  {
    const std::lock_guard lock(mutex_);
    ids.swap(cancelled_);
    for (const uint64_t id : ids) {
      const auto found = std::ranges::find(waiting_, id, &Waiting::id);
      if (found == waiting_.end()) continue;
      dropped.push_back(std::move(*found));
      waiting_.erase(found);
    }
    snapshot_.cancelled += dropped.size();
  }
  const Status cancelled(StatusCode::kCancelled, "cancelled");
  for (const Waiting& waiting : dropped) {
    GenerationEvent event;
    event.error = cancelled;
    waiting.sink(event);
  }
  for (auto at = active_.begin(); at != active_.end();) {
    const auto active = at++;
    if (std::ranges::find(ids, active->id) == ids.end()) continue;
    active->error = cancelled;
    active->Emit({});
    Retire(active, /*keep=*/true);
    const std::lock_guard lock(mutex_);
    ++snapshot_.cancelled;
  }
}

void Scheduler::Admit() {
  while (static_cast<int>(active_.size()) < options_.max_running) {
    Waiting next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const int64_t needed = static_cast<int64_t>(next.request.prompt.size()) + next.request.answer.max_tokens;
    if (!MakeRoom(needed)) {
      const std::lock_guard lock(mutex_);
      waiting_.push_front(std::move(next));  // in order of arrival: nobody overtakes a large request for ever
      return;
    }
    const GenerationSink sink = next.sink;
    if (const Status status = StartRequest(std::move(next)); !status.ok()) {
      GenerationEvent event;
      event.error = status;
      sink(event);
    }
  }
}

// Whether `tokens` more fit beside what runs, after idle sequences were given up, the least recently used first. A running
// request counts with its longest answer, so that a step never lacks a page.
bool Scheduler::MakeRoom(int64_t tokens) {
  int64_t held = tokens;
  for (const Active& active : active_) held += active.reserved_tokens();
  if (held > options_.kv_tokens) return false;
  for (const Idle& idle : idle_) held += static_cast<int64_t>(idle.tokens.size());
  while (held > options_.kv_tokens && !idle_.empty()) {
    held -= static_cast<int64_t>(idle_.front().tokens.size());
    OSCAR_CHECK(cache_->Release(idle_.front().sequence).ok());
    idle_.pop_front();
  }
  return true;
}

// The idle sequence that shares most with the prompt, shortened to what it shares; else an empty one. `tokens`: what it holds.
Result<SequenceId> Scheduler::SequenceFor(const GenerationRequest& request, std::vector<int32_t>* tokens) {
  const std::vector<int32_t>& prompt = request.prompt;
  const auto shared = [&](const Idle& idle) {
    const size_t limit = std::min(idle.tokens.size(), prompt.size() - 1);  // the logits of the last one are needed
    return std::mismatch(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(limit), idle.tokens.begin()).first - prompt.begin();
  };
  auto best = idle_.end();
  std::ptrdiff_t best_shared = kPageTokens - 1;  // less is not worth a sequence that another turn may want
  for (auto idle = idle_.begin(); idle != idle_.end() && !request.score_prompt; ++idle) {
    if (const std::ptrdiff_t count = shared(*idle); count > best_shared) {
      best = idle;
      best_shared = count;
    }
  }
  if (best == idle_.end()) {
    if (active_.size() + idle_.size() >= static_cast<size_t>(options_.max_running)) {
      OSCAR_CHECK(!idle_.empty());
      OSCAR_TRY(cache_->Release(idle_.front().sequence));
      idle_.pop_front();
    }
    return cache_->NewSequence();
  }
  const SequenceId sequence = best->sequence;
  *tokens = std::move(best->tokens);
  idle_.erase(best);
  if (static_cast<size_t>(best_shared) < tokens->size()) {
    OSCAR_ASSIGN_OR_RETURN(const int kept, cache_->Truncate(sequence, static_cast<int>(best_shared)));
    tokens->resize(static_cast<size_t>(kept));
  }
  return sequence;
}

Status Scheduler::StartRequest(Waiting waiting) {
  OSCAR_ASSIGN_OR_RETURN(AnswerStream answer, AnswerStream::Create(engine_.tokenizer(), waiting.request.answer,
                                                                   engine_.model().config().vocab_size, waiting.request.prompt));
  std::vector<int32_t> tokens;
  OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, SequenceFor(waiting.request, &tokens));
  Active& active = active_.emplace_back(std::move(waiting), sequence, std::move(answer));
  active.tokens = std::move(tokens);
  active.cached_tokens = static_cast<int>(active.tokens.size());
  const std::lock_guard lock(mutex_);
  ++snapshot_.requests;
  snapshot_.prompt_tokens += active.request.prompt.size();
  snapshot_.cached_tokens += active.tokens.size();
  return {};
}

void Scheduler::RunStep() {
  std::vector<Active*> members;
  std::vector<StepSequence> batch;
  int room = options_.step_tokens;
  for (Active& active : active_) {
    if (!active.decoding()) continue;
    members.push_back(&active);
    batch.push_back({active.sequence, {&active.next_token, 1}, false});
    --room;
  }
  for (Active& active : active_) {
    if (active.decoding() || room <= 0) continue;
    const std::span<const int32_t> rest = std::span<const int32_t>(active.request.prompt).subspan(active.tokens.size());
    size_t count = std::min(rest.size(), static_cast<size_t>(room));
    // Chunks end on whole pages where they can: the next one then begins with a full one.
    const size_t over = (active.tokens.size() + count) % kPageTokens;
    if (count < rest.size() && count > over) count -= over;
    members.push_back(&active);
    batch.push_back({active.sequence, rest.first(count), active.request.score_prompt});
    room -= static_cast<int>(count);
  }
  RunBatch(members, batch);
  for (auto at = active_.begin(); at != active_.end();) {
    const auto active = at++;
    if (active->ended()) Retire(active, /*keep=*/active->error.ok());
  }
}

void Scheduler::RunBatch(const std::vector<Active*>& members, const std::vector<StepSequence>& batch) {
  const Status status = engine_.model().Forward(batch, *cache_, &logits_);
  if (!status.ok()) {
    // Nothing was committed. One request's bad numbers must not end the others: each is tried alone.
    if (members.size() > 1) {
      for (size_t i = 0; i < members.size(); ++i) RunBatch({members[i]}, {batch[i]});
      return;
    }
    members[0]->error = status;
    members[0]->Emit({});
    return;
  }
  const size_t vocab = static_cast<size_t>(engine_.model().config().vocab_size);
  size_t row = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    Active& active = *members[i];
    const size_t rows = batch[i].all_logits ? batch[i].tokens.size() : 1;
    const std::span<const float> logits = std::span(logits_).subspan(row * vocab, rows * vocab);
    row += rows;
    if (batch[i].all_logits) ScorePrompt(active, logits);
    active.tokens.insert(active.tokens.end(), batch[i].tokens.begin(), batch[i].tokens.end());
    if (active.tokens.size() >= active.request.prompt.size()) TakeLogits(active, logits.last(vocab));
  }
}

// Row r of a prompt's part gives the probability of the token behind it.
void Scheduler::ScorePrompt(Active& active, std::span<const float> logits) {
  const size_t vocab = static_cast<size_t>(engine_.model().config().vocab_size);
  const std::vector<int32_t>& prompt = active.request.prompt;
  for (size_t r = 0; r < logits.size() / vocab && active.tokens.size() + r + 1 < prompt.size(); ++r) {
    active.prompt_scores.push_back(
        ScoreToken(logits.subspan(r * vocab, vocab), prompt[active.tokens.size() + r + 1], active.request.top_scores.value_or(0)));
  }
}

// Samples the next token and says what came of it.
void Scheduler::TakeLogits(Active& active, std::span<const float> logits) {
  GenerationEvent event;
  event.prompt_scores = std::exchange(active.prompt_scores, {});
  if (active.request.answer.max_tokens == 0) {
    active.finish = FinishReason::kLength;
    return active.Emit(std::move(event));
  }
  const auto next = active.answer.Next(logits);
  if (!next.ok()) {
    active.error = next.status();
    return active.Emit({});
  }
  event.tokens.push_back(next->token);
  event.text = next->text;
  if (active.request.top_scores) event.scores.push_back(ScoreToken(logits, next->token, *active.request.top_scores));
  ++active.completion_tokens;
  active.next_token = next->token;
  active.finish = next->finish;
  event.stop_string = next->stop_string;
  event.stop_token = next->stop_token;
  active.Emit(std::move(event));
}

void Scheduler::Retire(std::list<Active>::iterator active, bool keep) {
  if (keep && !active->tokens.empty()) {
    idle_.push_back({active->sequence, std::move(active->tokens)});
  } else {
    OSCAR_CHECK(cache_->Release(active->sequence).ok());
  }
  const std::lock_guard lock(mutex_);
  snapshot_.generated_tokens += static_cast<uint64_t>(active->completion_tokens);
  snapshot_.failed += !active->error.ok() && active->error.code() != StatusCode::kCancelled;
  active_.erase(active);
}

void Scheduler::Publish() {
  int64_t used = 0;
  for (const Active& active : active_) used += static_cast<int64_t>(active.tokens.size());
  for (const Idle& idle : idle_) used += static_cast<int64_t>(idle.tokens.size());
  const KvCacheStats stats = cache_->stats();
  const std::lock_guard lock(mutex_);
  snapshot_.running = static_cast<int>(active_.size());
  snapshot_.waiting = static_cast<int>(waiting_.size());
  snapshot_.used_tokens = used;
  snapshot_.kv_tokens = options_.kv_tokens;
  snapshot_.kv = stats;
}

}  // namespace oscar::engine
