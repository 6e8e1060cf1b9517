#include "src/kv/kernels/merge_states.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "oscar/kernels.h"

namespace oscar {
namespace kernels {

void ClearPartialSums(int num_rows, int d, const PartialSums& total) {
  std::fill_n(total.output, static_cast<size_t>(num_rows) * static_cast<size_t>(d), 0.0f);
  std::fill_n(total.max, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(total.sum, num_rows, 0.0f);
}

void AddPartialSums(const PartialSums& part, int num_rows, int d, const PartialSums& total) {
  for (int r = 0; r < num_rows; ++r) {
    if (part.max[r] == -std::numeric_limits<float>::infinity() && part.sum[r] == 0.0f) continue;
    const float max = std::max(part.max[r], total.max[r]);
    const float part_weight = std::exp2(part.max[r] - max);
    const float total_weight = std::exp2(total.max[r] - max);  // 0 for an empty total
    total.max[r] = max;
    total.sum[r] = total.sum[r] * total_weight + part.sum[r] * part_weight;
    float* sums = total.output + static_cast<size_t>(r) * static_cast<size_t>(d);
    const float* added = part.output + static_cast<size_t>(r) * static_cast<size_t>(d);
    for (int c = 0; c < d; ++c) sums[c] = sums[c] * total_weight + added[c] * part_weight;
  }
}

}  // namespace kernels

float MergeStates(std::span<const PartialState> parts, std::span<float> output) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  float max = kEmpty;
  for (const PartialState& part : parts) max = std::max(max, part.lse);
  std::fill(output.begin(), output.end(), 0.0f);
  if (max == kEmpty) return kEmpty;
  float total = 0;
  for (const PartialState& part : parts) total += std::exp(part.lse - max);
  for (const PartialState& part : parts) {
    if (part.lse == kEmpty) continue;
    const float weight = std::exp(part.lse - max) / total;
    for (size_t c = 0; c < output.size(); ++c) output[c] += weight * part.output[c];
  }
  return max + std::log(total);
}

}  // namespace oscar
