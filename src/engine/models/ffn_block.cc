#include "src/engine/models/ffn_block.h"

namespace oscar::engine {

Tensor FfnBlock(const ModelContext& model, const LayerWeights& layer, Tensor x, Ops& ops) {
  const Tensor normed = ops.RmsNorm(x, *layer.ffn_norm, model.config.norm_epsilon);
  if (layer.router != nullptr) {
    const ExpertWeights experts = {layer.router, layer.expert_gate, layer.expert_up, layer.expert_down, model.config.num_used_experts};
    return ops.Add(ops.Experts(experts, normed), x);
  }
  const Tensor gated = ops.SwiGlu(ops.MatMul(*layer.ffn_gate, normed), ops.MatMul(*layer.ffn_up, normed));
  return ops.Add(ops.MatMul(*layer.ffn_down, gated), x);
}

}  // namespace oscar::engine
