// Mixtures of experts of CudaOps (expert_kernels.h).
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/ops/cuda/cuda_ops.h"

namespace oscar::engine {

using cuda::FromCuda;

Tensor CudaOps::Experts(const ExpertWeights& weights, Tensor x) {
  Node* in = NodeOf(x);
  OSCAR_CHECK_MSG(weights.gate->dims.size() == 3 && weights.gate->dims[0] == in->width, weights.gate->name);
  Mixture& mixture = mixtures_.emplace_back();
  mixture.router = PlacedOf(*weights.router).matrix.data();
  mixture.gate = PlacedOf(*weights.gate).matrix.data();
  mixture.up = PlacedOf(*weights.up).matrix.data();
  mixture.down = PlacedOf(*weights.down).matrix.data();
  mixture.num_experts = static_cast<int>(weights.router->dims[1]);
  mixture.num_used = weights.num_used;
  mixture.ffn_width = static_cast<int>(weights.gate->dims[1]);
  Node* node = NewNode(Kind::kExperts, in->rows, in->width);
  node->a = in;
  node->mixture = &mixture;
  ++in->num_uses;
  return TensorOf(node);
}

Status CudaOps::PlaceExperts(const Node& node) {
  Mixture& mixture = *node.mixture;
  const int pairs = node.rows * mixture.num_used, chunks = MostChunks(pairs, mixture.num_experts);
  const auto count = static_cast<size_t>(pairs);
  OSCAR_ASSIGN_OR_RETURN(float* const experts, TakeScratch(count));
  OSCAR_ASSIGN_OR_RETURN(float* const order, TakeScratch(count));
  OSCAR_ASSIGN_OR_RETURN(float* const table, TakeScratch(static_cast<size_t>(chunks) * sizeof(ExpertChunk) / sizeof(float)));
  OSCAR_ASSIGN_OR_RETURN(mixture.logits, TakeScratch(static_cast<size_t>(node.rows) * static_cast<size_t>(mixture.num_experts)));
  OSCAR_ASSIGN_OR_RETURN(mixture.shares, TakeScratch(count));
  OSCAR_ASSIGN_OR_RETURN(mixture.gated, TakeScratch(count * static_cast<size_t>(mixture.ffn_width)));
  OSCAR_ASSIGN_OR_RETURN(mixture.parts, TakeScratch(count * static_cast<size_t>(node.width)));
  mixture.experts = reinterpret_cast<int32_t*>(experts);
  mixture.order = reinterpret_cast<int32_t*>(order);
  mixture.chunks = reinterpret_cast<ExpertChunk*>(table);
  return {};
}

Status CudaOps::EmitExperts(const Node& node) {
  const Mixture& mixture = *node.mixture;
  const float* const x = node.a->data;
  const ExpertRouteParams route = {x, mixture.router, mixture.logits, mixture.experts, mixture.shares, mixture.order, mixture.chunks, node.rows, node.width,
                                   mixture.num_experts, mixture.num_used};
  OSCAR_TRY(FromCuda(LaunchExpertRoutes(route, stream_), "experts of rows"));
  const int chunks = MostChunks(node.rows * mixture.num_used, mixture.num_experts);
  const ExpertProductParams gated = {x, mixture.gate, mixture.up, mixture.order, mixture.chunks, mixture.gated, mixture.num_used, chunks, node.width,
                                     mixture.ffn_width};
  OSCAR_TRY(FromCuda(LaunchExpertProducts(gated, stream_), "gated product of experts"));
  const ExpertProductParams down = {mixture.gated, mixture.down, nullptr, mixture.order, mixture.chunks, mixture.parts, 1, chunks, mixture.ffn_width,
                                    node.width};
  OSCAR_TRY(FromCuda(LaunchExpertProducts(down, stream_), "product of experts"));
  return FromCuda(LaunchExpertSum({mixture.parts, mixture.shares, node.data, node.rows, node.width, mixture.num_used}, stream_), "sum of experts");
}

}  // namespace oscar::engine
