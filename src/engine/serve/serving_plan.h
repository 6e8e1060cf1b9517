// ServingPlan: context, places and pools of a server from the memory there is, when nobody says otherwise. Pure arithmetic.
#pragma once

#include <cstdint>

#include "oscar/codec.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar::engine {

// Bytes that this process may still take: what the system calls available, less when a control group allows less.
uint64_t AvailableMemory();

struct ServingNeeds {
  KvShape shape;
  KvMethod method;
  int sink = 64, recent = 256;
  int trained_context = 4096;   // tokens that the model was trained for
  int step_tokens = 256;
  uint64_t memory_bytes = 0;    // for all pools together
  // As given on the command line; 0: to be chosen.
  int context = 0, max_running = 0;
  int64_t kv_tokens = 0;
  bool prefix_cache = true;
};

struct ServingPlan {
  int context = 0, max_running = 0;
  int64_t kv_tokens = 0;        // KvCacheConfig::max_tokens
  int prefix_pages = 0;         // KvCacheConfig::prefix_pages
};

// The longest context that leaves room for a second sequence of it, eight places, a fifth of the memory for windows of
// prefixes, and encoded pages for the rest; no more than two contexts of every place. kResourceExhausted, with the numbers,
// when not even a context of 1024 tokens, or what was given, fits.
Result<ServingPlan> PlanServing(const ServingNeeds& needs);

}  // namespace oscar::engine
