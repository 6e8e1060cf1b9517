// Mixtures of experts on the CPU: ggml multiplies by the matrices that a table of indices names; table and sum are ours.
#include <span>

#include "src/base/check.h"
#include "src/engine/ops/cpu/expert_routing.h"
#include "src/engine/ops/cpu/ggml_ops.h"

namespace oscar::engine {
namespace {

// Rows of a table: the indices of a row's experts and behind them the bits of their shares.
void FillRoutes(ggml_tensor* node, int thread, int num_threads, void* /*unused*/) {
  const ggml_tensor* logits = node->src[0];
  const auto num_used = static_cast<size_t>(node->ne[0] / 2), num_experts = static_cast<size_t>(logits->ne[0]);
  for (int64_t row = thread; row < node->ne[1]; row += num_threads) {
    auto* const experts = static_cast<int32_t*>(node->data) + row * node->ne[0];
    RouteToExperts({static_cast<const float*>(logits->data) + row * logits->ne[0], num_experts}, {experts, num_used},
                   {reinterpret_cast<float*>(experts + num_used), num_used});
  }
}

// Rows of the experts, times their shares, summed in the order of the table.
void SumExperts(ggml_tensor* node, int thread, int num_threads, void* /*unused*/) {
  const ggml_tensor *parts = node->src[0], *routes = node->src[1];
  const int64_t width = node->ne[0], num_used = parts->ne[1];
  for (int64_t row = thread; row < node->ne[1]; row += num_threads) {
    const auto* const shares = static_cast<const float*>(routes->data) + row * 2 * num_used + num_used;
    const auto* const from = static_cast<const float*>(parts->data) + row * num_used * width;
    auto* const to = static_cast<float*>(node->data) + row * width;
    for (int64_t i = 0; i < width; ++i) {
      float sum = 0;
      for (int64_t slot = 0; slot < num_used; ++slot) sum += shares[slot] * from[slot * width + i];
      to[i] = sum;
    }
  }
}

}  // namespace

Tensor GgmlOps::Experts(const ExpertWeights& weights, Tensor x) {
  const int64_t num_rows = x.node->ne[1], num_used = weights.num_used;
  OSCAR_CHECK_MSG(x.node->ne[2] == 1 && weights.gate->dims[0] == x.node->ne[0] && weights.gate->dims.size() == 3, weights.gate->name);
  ggml_tensor* logits = MatMul(*weights.router, x).node;
  ggml_tensor* routes = ggml_custom_4d(context(), GGML_TYPE_I32, 2 * num_used, num_rows, 1, 1, &logits, 1, FillRoutes, GGML_N_TASKS_MAX, nullptr);
  ggml_tensor* experts = ggml_view_2d(context(), routes, num_used, num_rows, routes->nb[1], 0);
  ggml_tensor* rows = ggml_reshape_3d(context(), x.node, x.node->ne[0], 1, num_rows);
  ggml_tensor* gate = ggml_mul_mat_id(context(), weights.gate->tensor, rows, experts);
  ggml_tensor* up = ggml_mul_mat_id(context(), weights.up->tensor, rows, experts);
  ggml_tensor* parts = ggml_mul_mat_id(context(), weights.down->tensor, ggml_swiglu_split(context(), gate, up), experts);
  ggml_tensor* operands[] = {parts, routes};
  return {ggml_custom_4d(context(), GGML_TYPE_F32, parts->ne[0], num_rows, 1, 1, operands, 2, SumExperts, GGML_N_TASKS_MAX, nullptr)};
}

}  // namespace oscar::engine
