// Which experts a row goes to.
#pragma once

#include <cstdint>
#include <span>

namespace oscar::engine {

// The experts.size() largest of `logits`, the lower index at equals, and the softmax over these: shares that sum to 1. With a logit that
// is not a number all shares are none, and the experts are some. Precondition: 1 <= experts.size() == shares.size() <= logits.size().
void RouteToExperts(std::span<const float> logits, std::span<int32_t> experts, std::span<float> shares);

}  // namespace oscar::engine
