// CapacityPlan: how many pages of each kind a configuration needs and how many bytes they are (method.md 4, "Rules").
// The BF16 pages of the configured sequences come first; the encoded pool is for what they leave. Pure arithmetic.
#pragma once

#include <cstddef>

#include "oscar/codec.h"
#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/kv/pool/tier_rule.h"

namespace oscar::pool {

struct CapacityPlan {
  TierWindows windows;                 // as the pools use them: kEverythingRecent for bf16
  std::size_t bf16_page_bytes = 0;     // one page, all layers and KV heads
  std::size_t encoded_page_bytes = 0;  // 0 for bf16
  int bf16_pages = 0;
  int encoded_pages = 0;
  std::size_t bf16_bytes() const { return bf16_page_bytes * static_cast<std::size_t>(bf16_pages); }
  std::size_t encoded_bytes() const { return encoded_page_bytes * static_cast<std::size_t>(encoded_pages); }
};

// With these pages every step succeeds while the sequences hold at most config.max_tokens tokens together, steps in
// flight included, whatever their number up to max_sequences and whatever their lengths. kInvalidArgument for a bad
// shape, for windows that are not multiples of 64 and for limits below 1; kResourceExhausted when a size does not fit
// the machine's address space or the page ids.
Result<CapacityPlan> PlanCapacity(const KvCacheConfig& config, const CodecInfo& codec);

}  // namespace oscar::pool
