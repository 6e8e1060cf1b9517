#include "src/kv/calibrate/captured_rows.h"

#include "src/base/float_bits.h"

namespace oscar::calibrate {

Status CheckView(int layer, const char* name, const RowsView<const float>& rows, int num_tokens, int num_heads,
                 int head_dim) {
  if (rows.num_tokens == num_tokens && rows.num_heads == num_heads && rows.head_dim == head_dim) return {};
  const auto text = [](int tokens, int heads, int dim) {
    std::string shape = std::to_string(tokens);
    return shape.append(" x ").append(std::to_string(heads)).append(" x ").append(std::to_string(dim));
  };
  return {StatusCode::kInvalidArgument, "calibration: layer " + std::to_string(layer) + ": " + name + " are " +
                                            text(rows.num_tokens, rows.num_heads, rows.head_dim) +
                                            " (tokens, heads, head_dim), not " + text(num_tokens, num_heads, head_dim) +
                                            ": all heads must be captured"};
}

Status CheckFinite(int layer, const char* name, const char* head_name, const RowsView<const float>& rows,
                   int64_t first_token) {
  for (int token = 0; token < rows.num_tokens; ++token) {
    for (int head = 0; head < rows.num_heads; ++head) {
      const float* row = rows.Row(token, head);
      for (int i = 0; i < rows.head_dim; ++i) {
        if ((base::Bf16FromF32(row[i]) & 0x7F80) != 0x7F80) continue;
        return NonFiniteRow(layer, name, head_name, head, first_token + token);
      }
    }
  }
  return {};
}

Status NonFiniteRow(int layer, const char* name, const char* head_name, int head, int64_t token) {
  return {StatusCode::kNonFinite, "calibration: layer " + std::to_string(layer) + ", " + head_name + " " + std::to_string(head) + ", token " +
                                      std::to_string(token) + ": " + name + " hold a value that is not finite in BF16"};
}

RowMatrix WidenedRows(const RowsView<const float>& rows, int first_head, int num_heads) {
  RowMatrix wide(static_cast<Eigen::Index>(rows.num_tokens) * num_heads, rows.head_dim);
  double* out = wide.data();
  for (int token = 0; token < rows.num_tokens; ++token) {
    for (int head = 0; head < num_heads; ++head) {
      const float* row = rows.Row(token, first_head + head);
      for (int i = 0; i < rows.head_dim; ++i) *out++ = base::RoundToBf16(row[i]);
    }
  }
  return wide;
}

void AddOuterProducts(Matrix& lower, const RowMatrix& rows) {
  lower.selfadjointView<Eigen::Lower>().rankUpdate(rows.transpose());
}

}  // namespace oscar::calibrate
