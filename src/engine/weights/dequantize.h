// Rows of a weight as f32, through ggml's own type traits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/result.h"
#include "src/engine/weights/weight.h"

namespace oscar::engine {

// Of dims {width, rows} or, of matrices one behind the other, {width, rows, matrices}; 1 for a vector.
inline int64_t NumRows(const Weight& weight) {
  int64_t rows = 1;
  for (size_t i = 1; i < weight.dims.size(); ++i) rows *= weight.dims[i];
  return rows;
}

// Rows [first_row, first_row + num_rows) of NumRows: [num_rows, width] f32. kUnsupported for a type that
// ggml cannot widen. Precondition: the rows exist.
Result<std::vector<float>> DequantizeRows(const Weight& weight, int64_t first_row, int64_t num_rows);
// The same rows into `rows` of num_rows * width elements.
Status DequantizeRowsInto(const Weight& weight, int64_t first_row, int64_t num_rows, std::span<float> rows);

}  // namespace oscar::engine
