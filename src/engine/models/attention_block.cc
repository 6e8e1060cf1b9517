#include "src/engine/models/attention_block.h"

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

Tensor Project(const Weight& matrix, const Weight* bias, Tensor x, Ops& ops) {
  const Tensor projected = ops.MatMul(matrix, x);
  return bias != nullptr ? ops.AddBias(projected, *bias) : projected;
}

// QK norm where the model has one, then RoPE.
Tensor NormAndRotate(const ModelContext& model, const Weight* norm, Tensor heads, Ops& ops) {
  if (norm != nullptr) heads = ops.RmsNorm(heads, *norm, model.config.norm_epsilon);
  return ops.Rope(heads, model.config.kv.head_dim, model.rope, model.weights.rope_factors);
}

}  // namespace

void AttentionBlock(const ModelContext& model, const LayerWeights& layer, Tensor x, Ops& ops) {
  const Tensor normed = ops.RmsNorm(x, *layer.attention_norm, model.config.norm_epsilon);
  const Tensor query = Project(*layer.query, layer.query_bias, normed, ops);
  const Tensor key = Project(*layer.key, layer.key_bias, normed, ops);
  const Tensor value = Project(*layer.value, layer.value_bias, normed, ops);
  ops.Store(NormAndRotate(model, layer.query_norm, query, ops), Slot::kQuery);
  ops.Store(NormAndRotate(model, layer.key_norm, key, ops), Slot::kKey);
  ops.Store(value, Slot::kValue);
}

Status Attend(const ModelContext& model, const StepBatch& batch, int layer, const HeadTurn& turn, KvCache& cache) {
  const auto read_only = [](const RowsView<float>& rows) {
    return RowsView<const float>{rows.data, rows.num_tokens, rows.num_heads, rows.head_dim, rows.token_stride, rows.head_stride};
  };
  if (batch.observer != nullptr) {
    OSCAR_TRY(batch.observer->Observe(layer, read_only(batch.queries), read_only(batch.keys), read_only(batch.values)));
  }
  const auto rows_of = [](const RowsView<float>& rows, int first, int count) {
    const RowsView<float> part = rows.Slice(first, count);
    return RowsView<const float>{part.data, part.num_tokens, part.num_heads, part.head_dim, part.token_stride, part.head_stride};
  };
  if (batch.is_recorded) {
    const RecordedRows rows = {read_only(batch.queries), read_only(batch.keys), read_only(batch.values), turn};
    return cache.AttendRecorded(layer, model.config.attention_scale, rows, batch.attention);
  }
  int first = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const int count = batch.num_rows[i];
    OSCAR_TRY(cache.Append(batch.sequences[i], layer, rows_of(batch.keys, first, count), rows_of(batch.values, first, count)));
    first += count;
  }
  OSCAR_TRY(cache.Attend(batch.sequences, layer, model.config.attention_scale, rows_of(batch.queries, 0, first), batch.attention));
  return batch.observer != nullptr ? batch.observer->ObserveAttention(layer, read_only(batch.attention)) : Status();
}

Tensor AttentionOutput(const LayerWeights& layer, Tensor attention, Tensor x, Ops& ops) {
  return ops.Add(Project(*layer.attention_output, layer.attention_output_bias, attention, ops), x);
}

}  // namespace oscar::engine
