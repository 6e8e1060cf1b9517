#include "src/engine/serve/page_budget.h"

#include <algorithm>

#include "oscar/kernels.h"

namespace oscar::engine {
namespace {

int64_t PagesFor(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

PageBudget::PageBudget(const KvMethod& method, int sink, int recent, int step_tokens)
    : exact_(method.is_exact()), sink_(sink), recent_(recent), unit_tokens_(exact_ ? kPageTokens : method.codec->encode_tokens), step_tokens_(step_tokens) {}

PageBudget::Pages PageBudget::At(int64_t tokens) const {
  if (exact_) return {PagesFor(tokens), 0};
  const int64_t encoded = (EncodedEnd(static_cast<int>(tokens), sink_, recent_, unit_tokens_) - sink_) / kPageTokens;
  return {PagesFor(tokens) - encoded, encoded};
}

int64_t PageBudget::MostBf16(int64_t tokens) const {
  if (exact_) return PagesFor(tokens);
  // Behind the sink lie at most recent + unit - 1 tokens that are not encoded.
  return std::min<int64_t>(PagesFor(tokens), (sink_ + recent_ + unit_tokens_) / kPageTokens);
}

PageBudget::Pages PageBudget::NeededBy(std::span<const Growth> sequences) const {
  Pages needed;
  int64_t prompts = 0, beyond = 0;
  for (const Growth& one : sequences) {
    const Pages now = At(one.computed);
    const int64_t most = MostBf16(one.target);
    needed.bf16 += most - now.bf16;
    needed.encoded += At(one.target).encoded - now.encoded;
    if (!one.in_prompt) continue;
    // Until its end a step of s tokens holds what it encodes in both forms: (s + 62) / 64 pages beyond the windows.
    beyond += std::min<int64_t>(PagesFor(one.target) - most, (step_tokens_ + kPageTokens - 2) / kPageTokens);
    ++prompts;
  }
  needed.bf16 += std::min(beyond, (step_tokens_ + prompts * (kPageTokens - 2)) / kPageTokens);
  return needed;
}

}  // namespace oscar::engine
