#include "src/engine/ops/rope_angles.h"

#include <algorithm>
#include <cmath>

namespace oscar::engine {

std::vector<float> RopeAngles(const RopeParams& params, std::span<const float> factors) {
  std::vector<float> angles;
  const double pi = std::acos(-1.0);
  // Pair at which `rotations` turns fit into the original context (YaRN, section 3.2).
  const auto pair_of = [&](double rotations) {
    return params.dims * std::log(params.original_context / (rotations * 2 * pi)) / (2 * std::log(params.base));
  };
  const double low = params.yarn_mix == 0 ? 0 : std::max(0.0, std::floor(pair_of(params.beta_fast)));
  const double high = params.yarn_mix == 0 ? 0 : std::min(params.dims - 1.0, std::ceil(pair_of(params.beta_slow)));
  for (int i = 0; i < params.dims / 2; ++i) {
    const double factor = factors.empty() ? 1.0 : factors[static_cast<size_t>(i)];
    const double plain = std::pow(static_cast<double>(params.base), -2.0 * i / params.dims) / factor;
    double angle = plain * params.frequency_scale;
    if (params.yarn_mix != 0) {
      const double ramp = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
      const double mix = (1 - ramp) * params.yarn_mix;
      angle = angle * (1 - mix) + plain * mix;
    }
    angles.push_back(static_cast<float>(angle));
  }
  return angles;
}

}  // namespace oscar::engine
