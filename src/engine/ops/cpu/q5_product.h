// Products of Q5_0 weights with one row of activations, on AVX-512 with VNNI. Files of small models hold most of their weights in
// Q5_0, since K-quants want rows of multiples of 256; ggml's own product was half of a decode step. Weights are read as they lie in the
// file; activations are rounded to 8 bits per block of 32, as ggml rounds them.
//
// With codes c of 0 .. 31 a block is d_w (c - 16); the dot product of its codes begins at -16 times the sum of the activations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::engine {

// Whether this processor has what the functions below need.
bool HasQ5Product();

// Bytes of a row of `width` activations as MultiplyQ5Rows takes them. width: a multiple of 32.
std::size_t Q5ActivationBytes(int64_t width);

// Rounds x [width] f32 into `prepared`, Q5ActivationBytes(width) at a multiple of 64 bytes.
void PrepareQ5Activations(const float* x, int64_t width, std::byte* prepared);

// out[r] = row r of `weights` (blocks of Q5_0, [rows, width]) times the activations, for r in [first, end). The order of sums depends on
// nothing but the width.
void MultiplyQ5Rows(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out);

}  // namespace oscar::engine
