// StridedRows: a view of rows numbered through two nested dimensions, for example (query, head), with a stride for each.
#pragma once

#include <cstddef>

namespace oscar::base {

template <class T>
struct StridedRows {
  T* data = nullptr;
  int num_inner = 1;              // row r is (outer r / num_inner, inner r % num_inner)
  std::ptrdiff_t outer_stride = 0;  // elements
  std::ptrdiff_t inner_stride = 0;

  T* Row(int row) const { return data + (row / num_inner) * outer_stride + (row % num_inner) * inner_stride; }
};

// Rows without gaps.
template <class T>
StridedRows<T> DenseRows(T* data, std::ptrdiff_t stride) {
  return {data, 1, stride, 0};
}

}  // namespace oscar::base
