// The bit-reversal permutation P of an OSCAR rotation R = U H P (method.md 2.4): (X P)[:, j] = X[:, perm[j]] with
// perm[j] = d - 1 - br(j), br the reversal of the log2(d) bits of j. For d = 8: 7 3 5 1 6 2 4 0.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::transform {

// The lowest `bits` bits of `value` in reverse order.
uint32_t ReverseBits(uint32_t value, int bits);

// perm [d]. Precondition: head_dim is a power of two.
std::vector<int> BitReversalPermutation(int head_dim);

}  // namespace oscar::transform
