#include "src/engine/weights/dequantize.h"

#include <cstring>
#include <string>

#include <ggml.h>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine {

Status DequantizeRowsInto(const Weight& weight, int64_t first_row, int64_t num_rows, std::span<float> rows) {
  OSCAR_CHECK_MSG(weight.dims.size() >= 2 && first_row >= 0 && num_rows >= 0 && first_row + num_rows <= NumRows(weight), weight.name);
  const auto type = static_cast<ggml_type>(weight.type);
  const size_t row_bytes = ggml_row_size(type, weight.dims[0]);
  const std::byte* from = weight.bytes.data() + static_cast<size_t>(first_row) * row_bytes;
  OSCAR_CHECK(rows.size() == static_cast<size_t>(num_rows * weight.dims[0]));
  if (type == GGML_TYPE_F32) {
    std::memcpy(rows.data(), from, rows.size() * sizeof(float));
    return {};
  }
  const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
  if (to_float == nullptr) {
    return {StatusCode::kUnsupported, "tensor \"" + weight.name + "\": ggml cannot widen the type " + ggml_type_name(type)};
  }
  to_float(from, rows.data(), num_rows * weight.dims[0]);  // rows are whole blocks without gaps
  return {};
}

Result<std::vector<float>> DequantizeRows(const Weight& weight, int64_t first_row, int64_t num_rows) {
  std::vector<float> rows(static_cast<size_t>(num_rows * weight.dims[0]));
  OSCAR_TRY(DequantizeRowsInto(weight, first_row, num_rows, rows));
  return rows;
}

}  // namespace oscar::engine
