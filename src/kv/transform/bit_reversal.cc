#include "src/kv/transform/bit_reversal.h"

#include <bit>
#include <cstddef>

#include "src/base/check.h"
#include "src/kv/transform/hadamard.h"

namespace oscar::transform {

uint32_t ReverseBits(uint32_t value, int bits) {
  uint32_t reversed = 0;
  for (int i = 0; i < bits; ++i) reversed |= ((value >> i) & 1u) << (bits - 1 - i);
  return reversed;
}

std::vector<int> BitReversalPermutation(int head_dim) {
  OSCAR_CHECK(IsPowerOfTwo(head_dim));
  const int bits = std::countr_zero(static_cast<uint32_t>(head_dim));
  std::vector<int> permutation(static_cast<size_t>(head_dim));
  for (int j = 0; j < head_dim; ++j) {
    permutation[static_cast<size_t>(j)] = head_dim - 1 - static_cast<int>(ReverseBits(static_cast<uint32_t>(j), bits));
  }
  return permutation;
}

}  // namespace oscar::transform
