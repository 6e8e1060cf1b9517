// Plain data that describes the pools and sequences of a cache at one moment, for ValidateInvariants (invariants.h),
// tests and reports. No handles: a snapshot holds no page.
#pragma once

#include <cstdint>
#include <vector>

#include "src/kv/pool/tier_rule.h"

namespace oscar::pool {

struct PoolSnapshot {
  std::vector<int32_t> free;    // ids of free pages, any order
  std::vector<int32_t> owners;  // [num_pages] handles per page
};

struct SequenceSnapshot {
  int32_t id = -1;
  int length = 0;                   // committed tokens
  int step_tokens = 0;              // tokens of the reservation in flight; 0 when there is none
  std::vector<int32_t> bf16_table;  // by page index, kNoPage where none is held
  std::vector<int32_t> encoded_table;
  int32_t replaced_page = kNoPage;  // shared BF16 page that the reservation in flight copied and still holds
};

struct CacheSnapshot {
  TierWindows windows;
  PoolSnapshot bf16, encoded;
  std::vector<SequenceSnapshot> sequences;
  std::vector<int32_t> prefix_bf16, prefix_encoded;  // handles of the prefix tree and of parked sequences, a page once per handle
};

}  // namespace oscar::pool
