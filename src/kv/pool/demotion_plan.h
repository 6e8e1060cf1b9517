// PlanDemotion: which pages of a sequence are encoded by a step. Pure; depends on positions alone, so that prefill in
// any chunks, decode and a resumed sequence encode the same pages (method.md 5.2 and 5.3).
#pragma once

#include "src/kv/pool/tier_rule.h"

namespace oscar::pool {

// Page indices [first, end).
struct PageRange {
  int first = 0, end = 0;
  int size() const { return end - first; }
  bool operator==(const PageRange&) const = default;
};

// Pages that are BF16 in a sequence of `length` tokens and encoded in one of `end_length` >= length, oldest first. They
// are complete when the tokens before end_length have been appended. At most one page in decode. Some are seen encoded
// by queries of the step itself, which is why they are encoded in it and not after it.
constexpr PageRange PlanDemotion(int length, int end_length, TierWindows windows) {
  return {EncodedEnd(length, windows) / kPageTokens, EncodedEnd(end_length, windows) / kPageTokens};
}

}  // namespace oscar::pool
