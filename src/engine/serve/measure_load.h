// What a scheduler does under load at a fixed memory for its cache: throughput by the number of clients and by how much of each prompt
// is known (serving.md 20, G10). Everything as in the server but HTTP.
#pragma once

#include <cstdint>
#include <string>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

struct LoadRequest {
  uint64_t kv_bytes = 0;      // for all pools together, whatever the method
  int clients = 1;            // each asks again as soon as it has its answer
  int requests = 8;           // of all clients together
  int prompt_tokens = 512, answer_tokens = 64;
  double hit_rate = 0;        // 0 to 1: how much of each prompt all requests share, cut down to whole pages
  int step_tokens = 256;
  uint64_t seed = 1;
  RunControl control;         // progress in requests
};

struct LoadResult {
  int64_t capacity_tokens = 0;  // that the memory holds in this method
  int max_running = 0;          // requests at once that were planned for
  double seconds = 0;           // from the first request to the last token
  int64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
  uint64_t preemptions = 0;
  double first_token_seconds = 0;  // mean
};

// Random prompts of exact lengths, greedy answers that do not end early. A shared beginning is computed once before the clock starts.
// kInvalidArgument for numbers out of range, kResourceExhausted when one request does not fit into the memory, kCancelled.
Result<LoadResult> MeasureLoad(Engine& engine, const KvSetup& setup, const LoadRequest& request);

}  // namespace oscar::engine
