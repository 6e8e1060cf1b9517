#include "src/kv/transform/hadamard.h"

#include <cmath>
#include <cstddef>

#include "src/base/check.h"

namespace oscar::transform {

float HadamardFactor(int order) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(order))); }

void ApplyHadamard(std::span<float> row) {
  const size_t order = row.size();
  OSCAR_CHECK(IsPowerOfTwo(static_cast<int>(order)));
  const float factor = HadamardFactor(static_cast<int>(order));
  for (float& value : row) value *= factor;
  for (size_t half = 1; half < order; half *= 2) {
    for (size_t start = 0; start < order; start += 2 * half) {
      for (size_t i = start; i < start + half; ++i) {
        const float low = row[i], high = row[i + half];
        row[i] = low + high;
        row[i + half] = low - high;
      }
    }
  }
}

}  // namespace oscar::transform
