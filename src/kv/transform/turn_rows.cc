#include "src/kv/transform/turn_rows.h"

#include <cmath>

#include "src/kv/transform/turning_mean.h"

namespace oscar::transform {

void TurnRow(const RotaryEmbedding& rotary, int position, std::span<float> row) {
  for (int pair = 0; pair < static_cast<int>(rotary.angles.size()); ++pair) {
    const auto [first, second] = PairChannels(rotary, pair);
    const double angle = PairAngle(rotary, pair) * position, cosine = std::cos(angle), sine = std::sin(angle);
    float &a = row[static_cast<size_t>(first)], &b = row[static_cast<size_t>(second)];
    const double x = static_cast<double>(a), y = static_cast<double>(b);
    a = static_cast<float>(x * cosine - y * sine);
    b = static_cast<float>(x * sine + y * cosine);
  }
}

}  // namespace oscar::transform
