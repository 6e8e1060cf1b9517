// PageBudget: how many pages sequences need on their way (serving.md 13), so that who begins finds its pages beside all that runs. Each
// kind apart: a cache whose encoded pages are plenty may be short of BF16 pages for the windows. Pure arithmetic.
#pragma once

#include <cstdint>
#include <span>

#include "oscar/codec.h"

namespace oscar::engine {

class PageBudget {
 public:
  struct Pages {
    int64_t bf16 = 0, encoded = 0;
  };
  // A sequence that has `computed` tokens in the cache and may grow to `target` before it ends.
  struct Growth {
    int64_t computed = 0, target = 0;
    bool in_prompt = true;  // it takes parts of a prompt; otherwise one token in a step
  };

  // sink, recent: the cache's windows, multiples of 64. step_tokens: of all sequences in one step together.
  PageBudget(const KvMethod& method, int sink, int recent, int step_tokens);

  // What a sequence of so many tokens holds between two steps (method.md 5.4).
  Pages At(int64_t tokens) const;
  // New pages with which all of them reach their targets, in any order and however their prompts are cut, the pages that a step holds
  // until its end included. Not counted: the copy of a last page that two sequences share, one step long.
  Pages NeededBy(std::span<const Growth> sequences) const;

 private:
  // BF16 pages that a sequence holds between two steps at the most, until it has so many tokens.
  int64_t MostBf16(int64_t tokens) const;

  const bool exact_;
  const int sink_, recent_, unit_tokens_, step_tokens_;
};

}  // namespace oscar::engine
