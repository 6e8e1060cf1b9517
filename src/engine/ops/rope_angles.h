// How far the rotary pairs of a model turn per position.
#pragma once

#include <span>
#include <vector>

#include "src/engine/ops/ops.h"

namespace oscar::engine {

// Radians per position of each pair, [dims / 2], as Ops::Rope turns it. factors: [dims / 2] or empty.
std::vector<float> RopeAngles(const RopeParams& params, std::span<const float> factors);

}  // namespace oscar::engine
