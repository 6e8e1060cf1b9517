// Which quantised weights have a product with one row of activations of our own (decode steps): q5_product.h, q4_k_product.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::engine {

// The functions of one format, as q5_product.h describes them.
struct RowProduct {
  std::size_t (*activation_bytes)(int64_t width);
  void (*prepare)(const float* x, int64_t width, std::byte* prepared);
  void (*multiply)(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out);
};

// Null where there is none for the ggml type on this processor.
const RowProduct* RowProductOf(uint32_t ggml_type);

}  // namespace oscar::engine
