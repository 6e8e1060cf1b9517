// Scheduler: continuous batching over one KvCache (serving.md 13). One thread owns the cache and runs steps: every running
// sequence gets its next token, what is left of the step goes to parts of prompts in order of admission. Prompts and answers stay
// in the prefix cache, so that a request computes only what no request before it has computed.
//
// A running request whose step finds no page is not refused: another one leaves the pools for a while (preemption), to the
// host's memory exactly as it is, or, when that is full, to be computed again from its deepest resume point.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/prefix_cache.h"
#include "oscar/result.h"
#include "src/engine/runtime/answer_stream.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/serve/masks_ahead.h"
#include "src/engine/serve/page_budget.h"
#include "src/engine/serve/scheduler_metrics.h"
#include "src/engine/serve/waiting_queue.h"

namespace oscar::engine {

struct SchedulerOptions {
  int max_running = 8;             // sequences in a step
  int64_t kv_tokens = 0;           // tokens that the cache holds, all sequences together; at least the context
  int step_tokens = 256;           // tokens of a step, decodes included
  int max_queued = 256;            // requests that wait
  int64_t max_queued_tokens = 0;   // of their prompts; 0: 64 times step_tokens, at least the context
  double queue_timeout = 60;       // seconds that a request waits at most; 0: any time
  int admit_reserve = 256;         // tokens of an answer that must fit beside all that run, for a request to begin
  bool preempt = true;             // false: whole answers must fit
  double max_gap_ms = 0;           // parts of prompts are cut so that a step stays below it; 0: no bound
  bool prefix_cache = true;
  int prefix_pages = 0;            // BF16 pages for windows of prefixes, beside those of running requests
  int resume_stride = 64;          // pages of a long prompt between two spare resume points
  int64_t swap_bytes = 1 << 30;    // host memory for preempted sequences
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // not empty
  AnswerParams answer;          // max_tokens: at least 1, or 0 with score_prompt; prompt and answer together fit the context
  std::optional<int> top_scores;  // score each sampled token beside that many of the most likely ones
  bool score_prompt = false;      // the prompt's tokens too: nothing of them is taken from the cache, which has no logits
  std::string space;              // only requests of the same space share prefixes
  int tenant = 0, priority = 0;   // WaitingKey
  double deadline_seconds = 0;    // to begin within; 0: the queue's timeout alone
  bool is_further_choice = false;  // of a call that counts in the queue already
};

struct RequestTimings {
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0, first_token_seconds = 0, gap_p50_seconds = 0;
  int preemptions = 0;
};

// What happened to a request since the last event: text that is whole UTF-8, or its end.
struct GenerationEvent {
  std::string text;
  std::vector<int32_t> tokens;           // sampled, the end token included
  std::vector<TokenScore> scores;        // of `tokens`, if asked for
  std::vector<TokenScore> prompt_scores; // of the prompt's tokens from the second on, once, with the first event
  std::optional<FinishReason> finish;    // set in the last event, unless it failed
  std::string stop_string;               // of kStopString
  bool stop_token = false;               // kEndToken by one of the request's stop tokens
  Status error;                          // not OK: it failed, nothing follows
  bool timed_out = false;                // with an error: it waited too long
  int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // so far
  uint64_t seed = 0;
  RequestTimings timings;                // of the last event
  bool last() const { return finish.has_value() || !error.ok(); }
};
// Called on the scheduler's thread; must not block.
using GenerationSink = std::function<void(const GenerationEvent&)>;

class Scheduler {
 public:
  // kInvalidArgument when kv_tokens is less than the context or a limit is out of range; errors of the cache.
  static Result<std::unique_ptr<Scheduler>> Start(Engine& engine, const KvSetup& setup, const SchedulerOptions& options);
  // Ends every request with kCancelled.
  ~Scheduler();

  // Thread-safe, as all below. kResourceExhausted when the queue is full; kInvalidArgument for a request that can never run.
  Result<uint64_t> Submit(GenerationRequest request, GenerationSink sink);
  // At the next step boundary; the sink gets kCancelled. Does nothing for a request that has ended.
  void Cancel(uint64_t id);
  // Cancels all requests; returns how many there were.
  int CancelAll();
  // Runs `work` on the scheduler's thread between two steps and returns when it is done. kCancelled when the scheduler ends.
  Status Call(std::function<void(KvCache&)> work);
  SchedulerSnapshot snapshot() const;
  SchedulerCounters counters() const;
  // What a refused client should wait: the queue's tokens at the measured rate, 1 to 60 s.
  double retry_after_seconds() const;
  const KvMethod& method() const { return cache_->method(); }
  const KvCache& cache() const { return *cache_; }  // its constants: method, profile, config
  const SchedulerOptions& options() const { return options_; }
  int context() const { return context_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running;  // a request with its sequence
  struct Waiting {
    uint64_t id = 0;
    GenerationRequest request;
    GenerationSink sink;
    Clock::time_point arrived;
  };
  struct WaitingCall {
    std::function<void(KvCache&)> work;
    std::function<void(Status)> done;
  };
  using RunningPlace = std::list<Running>::iterator;

  Scheduler(Engine& engine, std::unique_ptr<KvCache> cache, const SchedulerOptions& options);
  void Loop();
  void EndAll();

  // The inbox.
  void TakeArrivals();
  void RunCalls();
  void TakeCancelled();
  void ExpireWaiting();
  void DropWaiting(std::list<Waiting>::iterator waiting, const Status& error, bool timed_out);

  // Admission and preemption (scheduler_admission.cc).
  void Admit();
  bool ReturnPreempted();
  bool TryStart(std::list<Waiting>::iterator waiting);
  Status StartRequest(Waiting waiting, const PrefixMatch& match);
  PrefixMatch MatchOf(const GenerationRequest& request) const;
  // Whether a running request is about to compute more of the prompt than is known; it then stops there for a resume point.
  bool AwaitsPrefix(const GenerationRequest& request, const PrefixMatch& match);
  int64_t TargetTokens(const GenerationRequest& request, int64_t history) const;
  bool Fits(int64_t target, int64_t shared_encoded_pages) const;
  void PlanStops(Running& running, const PrefixMatch& match) const;
  bool Preempt();
  bool DropParked();

  // Steps (scheduler_step.cc).
  void RunStep();
  void PlanStep();
  int ChunkRoom(int room, int decodes) const;
  int ChunkTokens(const Running& running, int room) const;
  bool RunBatch();
  void MakeMasksAhead();
  void RunEachAlone();
  // What a step gave a member: logits of its rows, or the token drawn where the model computes.
  struct StepRows {
    std::span<const float> logits;
    int32_t token = -1;
  };
  // How the tokens of the planned step are drawn where the model computes; nothing where some request needs logits.
  std::optional<std::vector<TokenDraw>> PlanDraws();
  void TakeRows(Running& running, const StepSequence& part, const StepRows& rows);
  void Measure(double seconds);
  void ScorePrompt(Running& running, std::span<const float> logits);
  void TakeToken(Running& running, const StepRows& rows);
  void Fail(Running& running, const Status& error);
  void PublishPrefix(Running& running, PrefixRetention retention);
  void Retire(RunningPlace running);
  void CountEnd(const Running& running);
  void PublishSnapshot();

  Engine& engine_;
  std::unique_ptr<KvCache> cache_;
  PrefixCache& prefixes_;         // of cache_
  const SchedulerOptions options_;
  const int context_;
  const PageBudget budget_;

  // Of the scheduler's thread.
  std::list<Running> running_;    // in order of admission
  std::list<Running> preempted_;  // the first to come back first
  std::list<Waiting> waiting_;
  WaitingQueue queue_;
  std::vector<Running*> members_;     // of the step
  std::vector<StepSequence> batch_;
  MasksAhead masks_ahead_;
  std::vector<float> logits_;
  std::vector<int32_t> tokens_;
  double prefill_second_per_token_ = 0, decode_step_seconds_ = 0;  // exponential averages
  int waiting_prefix_ = 0;
  Clock::time_point published_{};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Waiting> arrivals_;
  std::vector<uint64_t> cancelled_;
  std::vector<WaitingCall> calls_;
  int queued_requests_ = 0;       // waiting and arrived, without further choices
  int queued_all_ = 0;            // with them
  int64_t queued_tokens_ = 0;
  bool stopping_ = false;
  uint64_t next_id_ = 1;
  SchedulerSnapshot snapshot_;
  SchedulerCounters counters_;
  Clock::time_point last_turn_ = Clock::now();

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscar::engine
