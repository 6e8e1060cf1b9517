// The tier rule (method.md 5.1 and 5.4) as the pool uses it: which tokens of a sequence are BF16 and which are encoded.
// Pure functions of positions: chunk size, batch and history never enter. EncodedEnd and IsEncoded are defined once, in
// oscar/kernels.h, where the attention kernels read them too.
#pragma once

#include <algorithm>
#include <limits>

#include "oscar/kernels.h"
#include "oscar/kv_cache.h"
#include "oscar/types.h"

namespace oscar::pool {

using oscar::IsEncoded;

// A `recent` that no position reaches: nothing is ever encoded (bf16 method). A multiple of 64 as every window.
inline constexpr int kEverythingRecent = std::numeric_limits<int>::max() / kPageTokens * kPageTokens;
// Longest sequence: positions are int, and page arithmetic rounds up.
inline constexpr int kMaxSequenceTokens = kEverythingRecent - kPageTokens;

struct TierWindows {
  int sink = 64;     // multiple of 64
  int recent = 256;  // multiple of 64, or kEverythingRecent
  int unit_tokens = kPageTokens;  // tokens encoded together: 64 or 128
  bool operator==(const TierWindows&) const = default;
};

// Pages that `num_tokens` tokens from position 0 lie in.
constexpr int PagesFor(int num_tokens) { return (num_tokens + kPageTokens - 1) / kPageTokens; }

// End of the encoded segment of a sequence of `length` tokens, as a position: encoded tokens are [sink, EncodedEnd),
// none when EncodedEnd = sink: what the next query, at position `length`, sees.
constexpr int EncodedEnd(int length, TierWindows windows) {
  return oscar::EncodedEnd(length, windows.sink, windows.recent, windows.unit_tokens);
}

// Tokens by segment of a sequence of `length` tokens.
constexpr SegmentTokens SegmentsAt(int length, TierWindows windows) {
  SegmentTokens tokens;
  tokens.sink = std::min(windows.sink, length);
  tokens.body = std::max(0, EncodedEnd(length, windows) - windows.sink);
  tokens.recent = length - tokens.sink - tokens.body;
  return tokens;
}

}  // namespace oscar::pool
