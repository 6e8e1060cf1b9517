#include "src/engine/models/host_rows.h"

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine {

Result<RowsView<const float>> HostRows::Copy(const RowsView<const float>& rows, std::vector<float>& to) {
  OSCAR_CHECK(rows.num_heads == 1 || rows.head_stride == rows.head_dim);
  OSCAR_CHECK(rows.token_stride == static_cast<std::ptrdiff_t>(rows.num_heads) * rows.head_dim);
  to.resize(static_cast<size_t>(rows.num_tokens) * static_cast<size_t>(rows.token_stride));
  OSCAR_TRY(ops_.ReadSlots(rows.data, to));
  return PackedRows<const float>(to.data(), rows.num_tokens, rows.num_heads, rows.head_dim);
}

Status HostRows::Observe(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values) {
  OSCAR_ASSIGN_OR_RETURN(queries, Copy(queries, queries_));
  OSCAR_ASSIGN_OR_RETURN(keys, Copy(keys, keys_));
  OSCAR_ASSIGN_OR_RETURN(values, Copy(values, values_));
  return observer_.Observe(layer, queries, keys, values);
}

Status HostRows::ObserveAttention(int layer, RowsView<const float> attention) {
  OSCAR_ASSIGN_OR_RETURN(attention, Copy(attention, queries_));
  return observer_.ObserveAttention(layer, attention);
}

Status HostRows::ObserveHidden(int layer, RowsView<const float> hidden) {
  if (hidden.num_tokens == 0) return observer_.ObserveHidden(layer, hidden);
  OSCAR_ASSIGN_OR_RETURN(hidden, Copy(hidden, queries_));
  return observer_.ObserveHidden(layer, hidden);
}

}  // namespace oscar::engine
