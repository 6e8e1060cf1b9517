// What a scheduler counts (serving.md 12), and its state at one moment: for /metrics, /health, /v1/cache and reports.
#pragma once

#include <array>
#include <cstdint>

#include "oscar/kv_cache.h"
#include "oscar/prefix_cache.h"
#include "src/engine/serve/histogram.h"

namespace oscar::engine {

enum class RequestState : uint8_t { kWaiting, kPrefill, kDecode, kPreempted };
inline constexpr int kNumRequestStates = 4;

struct SchedulerCounters {
  uint64_t requests = 0;                            // admitted
  uint64_t prompt_tokens = 0, cached_tokens = 0, unresumed_tokens = 0, generated_tokens = 0;
  uint64_t finished_stop = 0, finished_length = 0, failed = 0, nonfinite = 0;
  std::array<uint64_t, kNumRequestStates> cancelled{};  // by state
  uint64_t rejected_full = 0, rejected_timeout = 0;
  uint64_t preempted_swap = 0, preempted_recompute = 0;
  uint64_t gap_violations = 0;                      // steps longer than --max-itl-ms
  Histogram first_token = Histogram::Seconds(), token_gap = Histogram::Seconds(), whole = Histogram::Seconds();
  Histogram queue = Histogram::Seconds(), prefill = Histogram::Seconds(), decode = Histogram::Seconds();
  Histogram prompt_sizes = Histogram::Tokens(), answer_sizes = Histogram::Tokens(), step_tokens = Histogram::Tokens();
  Histogram grammar_masks = Histogram::ShortSeconds();
  Histogram prefill_steps = Histogram::Seconds(), decode_steps = Histogram::Seconds();
  uint64_t cancelled_all() const { return cancelled[0] + cancelled[1] + cancelled[2] + cancelled[3]; }
};

struct SchedulerSnapshot {
  int running = 0, waiting = 0, preempted = 0;
  int waiting_prefix = 0;                // of `waiting`: for a prompt that another request is computing
  int64_t waiting_tokens = 0;            // of their prompts
  int64_t used_tokens = 0, kv_tokens = 0;  // of running sequences; what the pools were planned for
  SegmentTokens segments;                // of running sequences
  double step_age_seconds = 0;           // since the last step began or the loop last looked for work
  double prefill_rate = 0;               // prompt tokens per second, lately; 0 before the first
  double decode_rate = 0;                // answer tokens per second over the last second of work
  int64_t parked_bytes = 0;              // of preempted sequences, outside the pools
  KvCacheStats kv;
  PrefixStats prefixes;
};

}  // namespace oscar::engine
