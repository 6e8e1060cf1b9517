// Scheduler: continuous batching over one KvCache (serving.md 13). One thread owns the cache and runs steps: every running
// sequence gets its next token, what is left of the step goes to chunks of prompts in order of arrival. Finished sequences stay in
// the cache until their room is needed, so that a next turn computes only what is new.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/runtime/answer_stream.h"
#include "src/engine/runtime/engine.h"

namespace oscar::engine {

struct SchedulerOptions {
  int max_running = 8;          // sequences in a step
  int64_t kv_tokens = 0;        // tokens that the cache holds, all sequences together; at least the context
  int step_tokens = 256;        // tokens of a step, decodes included
  int max_queued = 256;         // requests that wait
};

struct GenerationRequest {
  std::vector<int32_t> prompt;  // not empty
  AnswerParams answer;          // max_tokens: at least 1, or 0 with score_prompt; prompt and answer together fit the context
  std::optional<int> top_scores;  // score each sampled token beside that many of the most likely ones
  bool score_prompt = false;      // the prompt's tokens too: nothing of them is taken from the cache, which has no logits
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
  int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // so far
  uint64_t seed = 0;
  bool last() const { return finish.has_value() || !error.ok(); }
};
// Called on the scheduler's thread; must not block.
using GenerationSink = std::function<void(const GenerationEvent&)>;

// A moment of the scheduler, for health, metrics and reports.
struct SchedulerSnapshot {
  int running = 0, waiting = 0;
  int64_t used_tokens = 0, kv_tokens = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, requests = 0, cancelled = 0, failed = 0;
  double step_age_seconds = 0;           // since the last step began or the loop last looked for work
  KvCacheStats kv;
};

class Scheduler {
 public:
  // kInvalidArgument when kv_tokens is less than the context or a limit is not positive; errors of the cache.
  static Result<std::unique_ptr<Scheduler>> Start(Engine& engine, const KvSetup& setup, const SchedulerOptions& options);
  // Ends every request with kCancelled.
  ~Scheduler();

  // Thread-safe, as all below. kResourceExhausted when the queue is full; kInvalidArgument for a request that can never run.
  Result<uint64_t> Submit(GenerationRequest request, GenerationSink sink);
  // At the next step boundary; the sink gets kCancelled. Does nothing for a request that has ended.
  void Cancel(uint64_t id);
  SchedulerSnapshot snapshot() const;
  const KvMethod& method() const { return cache_->method(); }
  int context() const { return context_; }

 private:
  struct Active;    // a request with its sequence
  struct Idle {     // a sequence that nobody runs, kept for its tokens
    SequenceId sequence;
    std::vector<int32_t> tokens;
  };
  struct Waiting {
    uint64_t id;
    GenerationRequest request;
    GenerationSink sink;
  };

  Scheduler(Engine& engine, std::unique_ptr<KvCache> cache, const SchedulerOptions& options);
  void Loop();
  void TakeCancelled();
  void Admit();
  Status StartRequest(Waiting waiting);
  Result<SequenceId> SequenceFor(const GenerationRequest& request, std::vector<int32_t>* tokens);
  bool MakeRoom(int64_t tokens);
  void RunStep();
  void RunBatch(const std::vector<Active*>& members, const std::vector<StepSequence>& batch);
  void ScorePrompt(Active& active, std::span<const float> logits);
  void TakeLogits(Active& active, std::span<const float> logits);
  void Retire(std::list<Active>::iterator active, bool keep);
  void Publish();

  Engine& engine_;
  std::unique_ptr<KvCache> cache_;
  const SchedulerOptions options_;
  const int context_;

  // Of the scheduler's thread.
  std::list<Active> active_;
  std::list<Idle> idle_;  // least recently used first
  std::vector<float> logits_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;
  std::vector<uint64_t> cancelled_;
  bool stopping_ = false;
  uint64_t next_id_ = 1;
  SchedulerSnapshot snapshot_;
  std::chrono::steady_clock::time_point last_turn_ = std::chrono::steady_clock::now();

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscar::engine
