// The feed-forward part of a decoder layer: SwiGLU, or a mixture of experts that are.
#pragma once

#include "src/engine/models/arch.h"
#include "src/engine/ops/ops.h"

namespace oscar::engine {

// Records x + down(silu(gate(n)) * up(n)) with n = RMS norm of x [rows, hidden], or x + Ops::Experts of n.
Tensor FfnBlock(const ModelContext& model, const LayerWeights& layer, Tensor x, Ops& ops);

}  // namespace oscar::engine
