// Products of Q4_K weights with one row of activations, on AVX-512 with VNNI: what most weights of larger K-quant files are. Weights are read
// as they lie in the file; activations are rounded to 8 bits per block of 32 (ggml rounds them by blocks of 256 for this format). width: a
// multiple of 256.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::engine {

// Whether this processor has what the functions below need.
bool HasQ4KProduct();

// Bytes of a row of `width` activations as MultiplyQ4KRows takes them.
std::size_t Q4KActivationBytes(int64_t width);

// Rounds x [width] f32 into `prepared`, Q4KActivationBytes(width) at a multiple of 64 bytes.
void PrepareQ4KActivations(const float* x, int64_t width, std::byte* prepared);

// out[r] = row r of `weights` (blocks of Q4_K, [rows, width]) times the activations, for r in [first, end). The order of sums depends on
// nothing but the width.
void MultiplyQ4KRows(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out);

}  // namespace oscar::engine
