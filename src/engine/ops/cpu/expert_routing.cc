#include "src/engine/ops/cpu/expert_routing.h"

#include <algorithm>
#include <cmath>

namespace oscar::engine {

void RouteToExperts(std::span<const float> logits, std::span<int32_t> experts, std::span<float> shares) {
  float poison = 0;  // NaN if a logit is NaN or infinite
  for (const float logit : logits) poison += logit * 0.0f;
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    int32_t best = -1;
    for (int32_t e = 0; e < static_cast<int32_t>(logits.size()); ++e) {
      const auto taken = experts.first(slot);
      if (std::ranges::find(taken, e) != taken.end()) continue;
      if (best < 0 || logits[static_cast<size_t>(e)] > logits[static_cast<size_t>(best)]) best = e;
    }
    experts[slot] = best;
  }
  const float largest = logits[static_cast<size_t>(experts[0])];
  float sum = poison;
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    shares[slot] = std::exp(logits[static_cast<size_t>(experts[slot])] - largest);
    sum += shares[slot];
  }
  for (float& share : shares) share /= sum;
}

}  // namespace oscar::engine
