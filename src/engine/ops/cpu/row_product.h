// Which quantised weights have a product with one row of activations of our own (decode steps): block_product.h, q4_k_product.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::engine {

// The functions of one format.
struct RowProduct {
  // Bytes of a row of `width` activations as `multiply` takes them.
  std::size_t (*activation_bytes)(int64_t width);
  // Rounds x [width] f32 into `prepared`, which starts at a multiple of 4 bytes.
  void (*prepare)(const float* x, int64_t width, std::byte* prepared);
  // out[r] = row r of `weights` (as in the file, [rows, width]) times the activations, for r in [first, end).
  void (*multiply)(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out);
};

// Null where there is none for the ggml type on this processor.
const RowProduct* RowProductOf(uint32_t ggml_type);

}  // namespace oscar::engine
