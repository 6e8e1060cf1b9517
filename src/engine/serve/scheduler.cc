#include "src/engine/serve/scheduler.h"

#include <algorithm>
#include <future>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/serve/running_request.h"

namespace oscar::engine {

Result<std::unique_ptr<Scheduler>> Scheduler::Start(Engine& engine, const KvSetup& setup, const SchedulerOptions& options) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (options.max_running < 1) return invalid("--max-running " + std::to_string(options.max_running) + ": must be at least 1");
  if (options.max_queued < 0) return invalid("--max-queued-requests " + std::to_string(options.max_queued) + ": must not be negative");
  if (options.max_queued_tokens < 0) return invalid("--max-queued-tokens " + std::to_string(options.max_queued_tokens) + ": must not be negative");
  if (!(options.queue_timeout >= 0)) return invalid("--queue-timeout: must not be negative");
  if (!(options.max_gap_ms >= 0)) return invalid("--max-itl-ms: must not be negative");
  if (options.admit_reserve < 1) return invalid("--admit-reserve " + std::to_string(options.admit_reserve) + ": must be at least 1");
  if (options.resume_stride < 1) return invalid("--resume-stride " + std::to_string(options.resume_stride) + ": must be at least 1");
  if (options.swap_bytes < 0) return invalid("--swap-bytes " + std::to_string(options.swap_bytes) + ": must not be negative");
  if (options.step_tokens < options.max_running || options.step_tokens > kMaxStepTokens) {
    return invalid("--step-tokens " + std::to_string(options.step_tokens) + ": must be between --max-running (" +
                   std::to_string(options.max_running) + ") and " + std::to_string(kMaxStepTokens));
  }
  if (options.kv_tokens < engine.context()) {
    return invalid("--kv-tokens " + std::to_string(options.kv_tokens) + ": less than the context of " + std::to_string(engine.context()));
  }
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache,
                         engine.NewCache(setup, Engine::CacheSizes{options.kv_tokens, options.max_running, options.step_tokens, options.prefix_pages}));
  if (cache->prefixes() == nullptr) return invalid("--kv " + setup.method.name() + ": keeps no prefixes, which the server needs; take bf16");
  return std::unique_ptr<Scheduler>(new Scheduler(engine, std::move(cache), options));
}

Scheduler::Scheduler(Engine& engine, std::unique_ptr<KvCache> cache, const SchedulerOptions& options)
    : engine_(engine), cache_(std::move(cache)), prefixes_(*cache_->prefixes()), options_(options), context_(engine.context()),
      budget_(cache_->method(), cache_->config().sink, cache_->config().recent, options.step_tokens) {
  PublishSnapshot();
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
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (request.answer.max_tokens < (request.score_prompt ? 0 : 1) || prompt_tokens + request.answer.max_tokens > context_) {
    return Status(StatusCode::kInvalidArgument, "the prompt has " + std::to_string(request.prompt.size()) + " tokens and the answer up to " +
                                                    std::to_string(request.answer.max_tokens) + "; the context holds " + std::to_string(context_));
  }
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Status(StatusCode::kFailedPrecondition, "the server is shutting down");
    // Who arrives during a step waits for its end, and is not a queue while places are free.
    const int free_places = std::max(0, options_.max_running - snapshot_.running - snapshot_.preempted);
    const int64_t most_tokens = std::max<int64_t>(options_.max_queued_tokens > 0 ? options_.max_queued_tokens : int64_t{64} * options_.step_tokens, context_);
    if (!request.is_further_choice &&
        (queued_requests_ >= options_.max_queued + free_places || (queued_requests_ > 0 && queued_tokens_ + prompt_tokens > most_tokens))) {
      ++counters_.rejected_full;
      return Status(StatusCode::kResourceExhausted, "the queue is full: " + std::to_string(queued_requests_) + " requests with " +
                                                        std::to_string(queued_tokens_) + " prompt tokens wait");
    }
    id = next_id_++;
    queued_requests_ += request.is_further_choice ? 0 : 1;
    ++queued_all_;
    queued_tokens_ += prompt_tokens;
    arrivals_.push_back({id, std::move(request), std::move(sink), Clock::now()});
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

int Scheduler::CancelAll() {
  int count = 0;
  const Status status = Call([&](KvCache&) {
    const std::lock_guard lock(mutex_);
    for (const Waiting& waiting : waiting_) cancelled_.push_back(waiting.id);
    for (const auto* list : {&running_, &preempted_}) {
      for (const Running& running : *list) cancelled_.push_back(running.id);
    }
    count = static_cast<int>(cancelled_.size());
  });
  return status.ok() ? count : 0;
}

Status Scheduler::Call(std::function<void(KvCache&)> work) {
  auto done = std::make_shared<std::promise<Status>>();
  std::future<Status> result = done->get_future();
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return {StatusCode::kCancelled, "the server is shutting down"};
    calls_.push_back({std::move(work), [done](Status status) { done->set_value(std::move(status)); }});
  }
  wake_.notify_all();
  return result.get();
}

SchedulerSnapshot Scheduler::snapshot() const {
  const std::lock_guard lock(mutex_);
  SchedulerSnapshot copy = snapshot_;
  copy.waiting = queued_all_;
  copy.waiting_tokens = queued_tokens_;
  copy.step_age_seconds = std::chrono::duration<double>(Clock::now() - last_turn_).count();
  return copy;
}

SchedulerCounters Scheduler::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

double Scheduler::retry_after_seconds() const {
  const std::lock_guard lock(mutex_);
  const double seconds = snapshot_.prefill_rate > 0 ? static_cast<double>(queued_tokens_) / snapshot_.prefill_rate : 1;
  return std::clamp(seconds, 1.0, 60.0);
}

// --- The loop

void Scheduler::Loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      last_turn_ = Clock::now();
      // A pause of a second at most, so that an idle loop also shows that it lives.
      wake_.wait_for(lock, std::chrono::seconds(1), [this] {
        return stopping_ || !running_.empty() || !preempted_.empty() || !waiting_.empty() || !arrivals_.empty() || !cancelled_.empty() || !calls_.empty();
      });
      if (stopping_) break;
    }
    TakeArrivals();
    RunCalls();
    TakeCancelled();
    ExpireWaiting();
    Admit();
    if (!running_.empty()) RunStep();
    PublishSnapshot();
  }
  EndAll();
}

void Scheduler::EndAll() {
  TakeArrivals();
  const Status stopped(StatusCode::kCancelled, "the server is shutting down");
  std::vector<WaitingCall> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (const WaitingCall& call : calls) call.done(stopped);
  for (auto* list : {&running_, &preempted_}) {
    for (Running& running : *list) {
      running.error = stopped;
      running.Emit({});
    }
  }
  preempted_.clear();  // parked pages go before their cache
  for (Waiting& waiting : waiting_) {
    GenerationEvent event;
    event.error = stopped;
    waiting.sink(event);
  }
}

void Scheduler::TakeArrivals() {
  std::vector<Waiting> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (Waiting& waiting : arrivals) {
    queue_.Push({waiting.id, waiting.request.tenant, waiting.request.priority});
    waiting_.push_back(std::move(waiting));
  }
}

void Scheduler::RunCalls() {
  std::vector<WaitingCall> calls;
  {
    const std::lock_guard lock(mutex_);
    calls.swap(calls_);
  }
  for (const WaitingCall& call : calls) {
    call.work(*cache_);
    call.done({});
  }
}

void Scheduler::DropWaiting(std::list<Waiting>::iterator waiting, const Status& error, bool timed_out) {
  GenerationEvent event;
  event.error = error;
  event.timed_out = timed_out;
  event.timings.queue_seconds = std::chrono::duration<double>(Clock::now() - waiting->arrived).count();
  waiting->sink(event);
  queue_.Remove(waiting->id);
  const std::lock_guard lock(mutex_);
  queued_requests_ -= waiting->request.is_further_choice ? 0 : 1;
  --queued_all_;
  queued_tokens_ -= static_cast<int64_t>(waiting->request.prompt.size());
  waiting_.erase(waiting);
}

void Scheduler::TakeCancelled() {
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    ids.swap(cancelled_);
  }
  if (ids.empty()) return;
  const Status cancelled(StatusCode::kCancelled, "cancelled");
  const auto is_cancelled = [&](uint64_t id) { return std::ranges::find(ids, id) != ids.end(); };
  const auto count = [this](RequestState state) {
    const std::lock_guard lock(mutex_);
    ++counters_.cancelled[static_cast<std::size_t>(state)];
  };
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = at++;
    if (!is_cancelled(waiting->id)) continue;
    DropWaiting(waiting, cancelled, false);
    count(RequestState::kWaiting);
  }
  for (auto at = running_.begin(); at != running_.end();) {
    const auto running = at++;
    if (!is_cancelled(running->id)) continue;
    running->error = cancelled;
    running->Emit({});
    count(running->state());
    Retire(running);
  }
  for (auto at = preempted_.begin(); at != preempted_.end();) {
    const auto running = at++;
    if (!is_cancelled(running->id)) continue;
    running->error = cancelled;
    running->Emit({});
    count(RequestState::kPreempted);
    queue_.AddRunning(running->request.tenant, -1);
    preempted_.erase(running);
  }
}

void Scheduler::ExpireWaiting() {
  const Clock::time_point now = Clock::now();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = at++;
    const double waited = std::chrono::duration<double>(now - waiting->arrived).count();
    const double deadline = waiting->request.deadline_seconds;
    const bool expired = (options_.queue_timeout > 0 && waited > options_.queue_timeout) || (deadline > 0 && waited > deadline);
    if (!expired) continue;
    DropWaiting(waiting, {StatusCode::kFailedPrecondition, "the request waited " + std::to_string(static_cast<int>(waited)) + " s and did not begin"}, true);
    const std::lock_guard lock(mutex_);
    ++counters_.rejected_timeout;
  }
}

void Scheduler::PublishSnapshot() {
  // Walks over the pages of all prefixes: not after every step.
  const Clock::time_point now = Clock::now();
  const bool idle = running_.empty() && waiting_.empty();
  if (!idle && now - published_ < std::chrono::milliseconds(100)) {
    const std::lock_guard lock(mutex_);
    snapshot_.running = static_cast<int>(running_.size());
    snapshot_.preempted = static_cast<int>(preempted_.size());
    return;
  }
  published_ = now;
  SchedulerSnapshot next;
  next.running = static_cast<int>(running_.size());
  next.preempted = static_cast<int>(preempted_.size());
  next.waiting_prefix = waiting_prefix_;
  next.kv_tokens = options_.kv_tokens;
  for (const Running& running : running_) {
    next.used_tokens += running.computed;
    const SegmentTokens segments = cache_->segments(running.sequence);
    next.segments.sink += segments.sink;
    next.segments.body += segments.body;
    next.segments.recent += segments.recent;
  }
  for (const Running& running : preempted_) next.parked_bytes += running.parked ? static_cast<int64_t>(running.parked->host_bytes()) : 0;
  next.kv = cache_->stats();
  next.prefixes = prefixes_.prefix_stats();
  next.prefill_rate = prefill_second_per_token_ > 0 ? 1 / prefill_second_per_token_ : 0;
  next.decode_rate = decode_step_seconds_ > 0 ? static_cast<double>(running_.size()) / decode_step_seconds_ : 0;
  const std::lock_guard lock(mutex_);
  snapshot_ = next;
}

}  // namespace oscar::engine
