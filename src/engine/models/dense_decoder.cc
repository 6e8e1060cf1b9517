#include "src/engine/models/dense_decoder.h"

#include "src/base/status_macros.h"
#include "src/engine/models/attention_block.h"
#include "src/engine/models/ffn_block.h"

namespace oscar::engine {
namespace {

// Records what lies between the attention of layer `segment - 1` and that of layer `segment`.
void RecordSegment(const ModelContext& model, int segment, Ops& ops) {
  const int num_layers = model.config.kv.num_layers;
  const bool is_last = segment == num_layers;
  Tensor x;
  if (segment == 0) {
    x = ops.Embed(*model.weights.token_embedding);
  } else {
    const LayerWeights& layer = model.weights.layers[static_cast<size_t>(segment - 1)];
    x = ops.Load(Slot::kHidden, model.config.hidden_size);
    Tensor attention = ops.Load(Slot::kAttention, model.config.kv.num_query_heads * model.config.kv.head_dim);
    if (is_last) {
      x = ops.GatherOutputRows(x);
      attention = ops.GatherOutputRows(attention);
    }
    x = FfnBlock(model, layer, AttentionOutput(layer, attention, x, ops), ops);
  }
  ops.Store(x, Slot::kHidden);  // the last one's for the observer only; it costs nothing
  if (is_last) {
    const Tensor normed = ops.RmsNorm(x, *model.weights.output_norm, model.config.norm_epsilon);
    ops.Store(ops.MatMul(*model.weights.output, normed), Slot::kLogits);
  } else {
    AttentionBlock(model, model.weights.layers[static_cast<size_t>(segment)], x, ops);
  }
}

// The residual stream behind layer `segment - 1`, once the segment has run.
Status ShowHidden(const StepBatch& batch, int segment, int num_layers) {
  if (batch.observer == nullptr || segment == 0) return {};
  RowsView<const float> hidden{batch.hidden.data, batch.hidden.num_tokens, 1, batch.hidden.head_dim, batch.hidden.token_stride, batch.hidden.head_stride};
  if (segment == num_layers) hidden.num_tokens = static_cast<int>(batch.output_rows.size());
  return batch.observer->ObserveHidden(segment - 1, hidden);
}

}  // namespace

Status ForwardDenseDecoder(const ModelContext& model, const StepBatch& batch, Ops& ops, KvCache& cache) {
  const int num_layers = model.config.kv.num_layers;
  const int num_segments = batch.wants_logits ? num_layers + 1 : num_layers;
  for (int segment = 0; segment < num_segments; ++segment) {
    const RecordingKey key{.segment = segment,
                           .num_tokens = static_cast<int>(batch.tokens.size()),
                           .num_output_rows = static_cast<int>(batch.output_rows.size())};
    if (ops.Begin(key)) RecordSegment(model, segment, ops);
    OSCAR_TRY(ops.Submit());
    OSCAR_TRY(ShowHidden(batch, segment, num_layers));
    if (segment < num_layers) OSCAR_TRY(Attend(model, batch, segment, ops.TakeTurn(), cache));
  }
  return {};
}

}  // namespace oscar::engine
