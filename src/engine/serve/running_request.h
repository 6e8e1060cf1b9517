// Scheduler::Running: a request that has a sequence, or had one and waits to get it back.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

struct Scheduler::Running {
  Running(Waiting waiting, SequenceId at, int known, AnswerStream stream)
      : id(waiting.id), request(std::move(waiting.request)), sink(std::move(waiting.sink)), sequence(at), computed(known), cached(known),
        history(request.prompt), answer(std::move(stream)), arrived(waiting.arrived), admitted(Clock::now()) {}

  uint64_t id;
  GenerationRequest request;
  GenerationSink sink;
  SequenceId sequence;
  int computed;                  // tokens in the cache: the first ones of `history`
  int cached;                    // of them, how many were there when it began
  std::vector<int32_t> history;  // the prompt and every sampled token
  AnswerStream answer;
  std::vector<int> stops;        // lengths at which a part of the prompt ends for a resume point, ascending
  std::vector<int> spare_stops;  // those of `stops` that are given up first
  std::vector<TokenScore> prompt_scores;
  int completion_tokens = 0, preemptions = 0;
  std::unique_ptr<ParkedSequence> parked;  // while preempted, if its state was kept
  Status error;                  // not OK: to be retired
  std::optional<FinishReason> finish;
  Clock::time_point arrived, admitted, first_token{}, last_token{};
  std::vector<float> gaps;       // seconds between tokens

  int pending() const { return static_cast<int>(history.size()) - computed; }
  bool decoding() const { return completion_tokens > 0 && pending() == 1; }
  bool ended() const { return finish.has_value() || !error.ok(); }
  RequestState state() const { return completion_tokens > 0 ? RequestState::kDecode : RequestState::kPrefill; }

  RequestTimings Timings() const {
    const auto seconds = [](Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); };
    RequestTimings timings;
    timings.preemptions = preemptions;
    timings.queue_seconds = seconds(arrived, admitted);
    const bool has_token = completion_tokens > 0;
    timings.prefill_seconds = seconds(admitted, has_token ? first_token : Clock::now());
    if (!has_token) return timings;
    timings.first_token_seconds = seconds(arrived, first_token);
    timings.decode_seconds = seconds(first_token, last_token);
    if (!gaps.empty()) {
      std::vector<float> sorted = gaps;
      std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2));
      timings.gap_p50_seconds = sorted[sorted.size() / 2];
    }
    return timings;
  }
  void Emit(GenerationEvent event) const {
    event.prompt_tokens = static_cast<int>(request.prompt.size());
    event.cached_tokens = cached;
    event.completion_tokens = completion_tokens;
    event.seed = answer.seed();
    event.finish = finish;
    event.error = error;
    if (event.last()) event.timings = Timings();
    sink(event);
  }
};

}  // namespace oscar::engine
