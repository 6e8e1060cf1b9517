// Products of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 weights with one row of activations, on AVX-512 with VNNI. Files of small models hold most of their weights in
// these formats, since K-quants want rows of multiples of 256. Weights are read as they lie in the file; activations are rounded to 8 bits per block of
// 32, as ggml rounds them.
//
// A block is d_w (c - offset), and the dot product of its codes begins at -offset times the sum of the activations; or d_w c + m_w, and m_w times the sum of
// the activations is added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/engine/ops/cpu/row_product.h"

namespace oscar::engine {

// Null where there is none for the ggml type, or on this processor. prepare: width is a multiple of 32; the first `width` bytes are the rounded activations, from
// 2 width on lie the scales of blocks, f32. multiply: the order of sums depends on nothing but the width.
const RowProduct* BlockProductOf(uint32_t ggml_type);

}  // namespace oscar::engine
