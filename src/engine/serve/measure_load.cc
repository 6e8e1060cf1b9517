#include "src/engine/serve/measure_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "oscar/kernels.h"
#include "src/base/status_macros.h"
#include "src/engine/serve/scheduler.h"
#include "src/engine/serve/serving_plan.h"

namespace oscar::engine {
namespace {

using Clock = std::chrono::steady_clock;

Status Check(const Engine& engine, const LoadRequest& request) {
  const auto invalid = [](const std::string& text) { return Status(StatusCode::kInvalidArgument, text); };
  if (request.clients < 1 || request.requests < 1) return invalid("clients and requests must be positive");
  if (request.prompt_tokens < 2 || request.answer_tokens < 1) return invalid("a prompt has two tokens at least, an answer one");
  if (!(request.hit_rate >= 0 && request.hit_rate <= 1)) return invalid("hit rates are numbers from 0 to 1");
  if (int64_t{request.prompt_tokens} + request.answer_tokens > engine.model().config().max_context) {
    return invalid("prompt and answer together have more than the " + std::to_string(engine.model().config().max_context) + " tokens that the model was trained for");
  }
  return {};
}

Result<SchedulerOptions> Plan(Engine& engine, const KvSetup& setup, const LoadRequest& request) {
  const KvWindows windows = engine.WindowsOf(setup);
  ServingNeeds needs;
  needs.shape = engine.model().config().kv;
  needs.method = setup.method;
  needs.sink = windows.sink;
  needs.recent = windows.recent;
  needs.trained_context = engine.model().config().max_context;
  needs.step_tokens = request.step_tokens;
  needs.memory_bytes = request.kv_bytes;
  needs.context = (request.prompt_tokens + request.answer_tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
  needs.context = std::min(needs.context, needs.trained_context);
  needs.prefix_cache = request.hit_rate > 0;
  // As many places as clients, or as the memory has room for.
  Result<ServingPlan> plan = Status(StatusCode::kResourceExhausted, "no place");
  for (needs.max_running = request.clients; needs.max_running > 0 && !plan.ok(); needs.max_running -= 1) plan = PlanServing(needs);
  if (!plan.ok()) return plan.status();
  OSCAR_TRY(engine.UseContext(needs.context));
  SchedulerOptions options;
  options.max_running = plan->max_running;
  options.kv_tokens = plan->kv_tokens;
  options.prefix_pages = plan->prefix_pages;
  options.prefix_cache = needs.prefix_cache;
  options.step_tokens = request.step_tokens;
  options.max_queued = request.clients + 1;
  options.max_queued_tokens = (int64_t{request.clients} + 1) * needs.context;
  options.queue_timeout = 0;
  return options;
}

// Clients that ask in turns until all requests are answered.
class Clients {
 public:
  Clients(Engine& engine, Scheduler& scheduler, const LoadRequest& request) : scheduler_(scheduler), request_(request), vocab_(engine.model().config().vocab_size) {
    std::mt19937_64 rng(request.seed);
    const int shared = static_cast<int>(request.hit_rate * request.prompt_tokens) / kPageTokens * kPageTokens;
    for (int i = 0; i < shared; ++i) shared_.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab_)));
  }

  Status ComputeShared() {
    if (shared_.empty()) return {};
    target_ = 1;
    OSCAR_TRY(Ask(shared_, 1));
    OSCAR_TRY(Wait(/*reports=*/false));
    result_ = {};
    ended_ = 0;
    return {};
  }

  Result<LoadResult> Run() {
    target_ = request_.requests;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < std::min(request_.clients, request_.requests); ++i) OSCAR_TRY(AskNext(i));
    OSCAR_TRY(Wait(/*reports=*/true));
    result_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    result_.first_token_seconds /= request_.requests;
    return result_;
  }

 private:
  Status AskNext(int number) {
    std::mt19937_64 rng(request_.seed + 1 + static_cast<uint64_t>(number));
    std::vector<int32_t> prompt = shared_;
    while (static_cast<int>(prompt.size()) < request_.prompt_tokens) prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab_)));
    return Ask(std::move(prompt), request_.answer_tokens);
  }

  Status Ask(std::vector<int32_t> prompt, int answer_tokens) {
    GenerationRequest asked;
    asked.prompt = std::move(prompt);
    asked.answer.max_tokens = answer_tokens;
    asked.answer.ignore_end = true;
    asked.answer.sampling.temperature = 0;
    ++asked_;
    return scheduler_.Submit(std::move(asked), [this](const GenerationEvent& event) { Note(event); }).status();
  }

  void Note(const GenerationEvent& event) {
    if (!event.last()) return;
    const std::lock_guard lock(mutex_);
    ++ended_;
    if (!event.error.ok()) error_ = event.error;
    result_.prompt_tokens += event.prompt_tokens;
    result_.cached_tokens += event.cached_tokens;
    result_.answer_tokens += event.completion_tokens;
    result_.preemptions += static_cast<uint64_t>(event.timings.preemptions);
    result_.first_token_seconds += event.timings.first_token_seconds;
    wake_.notify_all();
  }

  // Until as many requests as wanted have ended; asks the next ones meanwhile.
  Status Wait(bool reports) {
    int asked = asked_.exchange(0);
    std::unique_lock lock(mutex_);
    for (int seen = 0; seen < target_;) {
      wake_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended_ > seen || !error_.ok(); });
      if (!error_.ok()) return error_;
      OSCAR_TRY(request_.control.CheckCancelled());
      for (; seen < ended_; ++seen) {
        if (asked >= target_) continue;
        lock.unlock();
        OSCAR_TRY(AskNext(asked++));
        lock.lock();
      }
      if (reports) request_.control.Report(seen, target_);
    }
    return {};
  }

  Scheduler& scheduler_;
  const LoadRequest& request_;
  const int vocab_;
  std::vector<int32_t> shared_;
  std::atomic<int> asked_ = 0;
  int target_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  int ended_ = 0;
  Status error_;
  LoadResult result_;
};

}  // namespace

Result<LoadResult> MeasureLoad(Engine& engine, const KvSetup& setup, const LoadRequest& request) {
  OSCAR_TRY(Check(engine, request));
  OSCAR_ASSIGN_OR_RETURN(const SchedulerOptions options, Plan(engine, setup, request));
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<Scheduler> scheduler, Scheduler::Start(engine, setup, options));
  Clients clients(engine, *scheduler, request);
  Status shared = clients.ComputeShared();
  Result<LoadResult> result = shared.ok() ? clients.Run() : Result<LoadResult>(shared);
  scheduler.reset();  // its last events go to the clients
  if (!result.ok()) return result;
  result->capacity_tokens = options.kv_tokens;
  result->max_running = options.max_running;
  return result;
}

}  // namespace oscar::engine
