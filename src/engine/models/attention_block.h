// The attention part of a decoder layer, around the KV cache: up to RoPE before it, the output projection after it.
#pragma once

#include "src/engine/models/arch.h"
#include "src/engine/ops/ops.h"

namespace oscar::engine {

// Records RMS norm, projections (with biases), QK norm per head and RoPE of the residual x [num_tokens, hidden], into the slots
// kQuery, kKey and kValue: Q, K and V as attention sees them (method.md 2.1).
void AttentionBlock(const ModelContext& model, const LayerWeights& layer, Tensor x, Ops& ops);

// Attention of all layers' rows through the cache: appends K and V of each sequence, then attends; slot kQuery in, slot
// kAttention out. The observer sees both. `turn`: of Ops::TakeTurn, in a recorded step.
Status Attend(const ModelContext& model, const StepBatch& batch, int layer, const HeadTurn& turn, KvCache& cache);

// Records the output projection of `attention` (with bias) added to the residual x.
Tensor AttentionOutput(const LayerWeights& layer, Tensor attention, Tensor x, Ops& ops);

}  // namespace oscar::engine
