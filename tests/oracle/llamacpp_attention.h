// LlamaCppKvCache: attention with the very operations that llama.cpp runs without flash attention over an F16 cache (f16
// products of K and Q, f32 softmax, f16 products of V and the weights, cells padded to 256), on the same ggml. Over it our
// forward pass must give llama.cpp's logits to the bit, so that everything but attention is compared without any tolerance.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <ggml-cpu.h>
#include <ggml.h>

#include "src/base/check.h"
#include "src/testing/exact_kv_cache.h"

namespace oscar::oracle {

class LlamaCppKvCache final : public oscar::testing::ExactKvCache {
 public:
  explicit LlamaCppKvCache(const KvShape& shape) : ExactKvCache(shape, Precision::kF16) {}

  Status Attend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries,
                RowsView<float> out) override {
    OSCAR_CHECK(sequences.size() == 1);
    const Sequence& state = sequence(sequences[0]);
    const Layer& rows = state.layers[static_cast<size_t>(layer)];
    const KvShape& shape = config().shape;
    const int64_t d = shape.head_dim, kv_heads = shape.num_kv_heads, heads = shape.num_query_heads;
    const int64_t num_rows = state.reserved, num_keys = state.length + state.reserved;
    const int64_t num_cells = GGML_PAD(num_keys, 256);
    const auto score_bytes = static_cast<size_t>(num_cells * num_rows * heads) * sizeof(float);
    const auto kv_bytes = static_cast<size_t>(num_cells * kv_heads * d) * sizeof(ggml_fp16_t);
    const auto row_bytes = static_cast<size_t>(num_rows * heads * d) * sizeof(float);
    // Scores, weights, mask and work area; K and V; Q and results.
    ggml_context* context = ggml_init({.mem_size = 5 * score_bytes + 4 * kv_bytes + 8 * row_bytes + (size_t{1} << 20),
                                       .mem_buffer = nullptr, .no_alloc = false});
    ggml_tensor* k = ggml_new_tensor_3d(context, GGML_TYPE_F16, d, kv_heads, num_cells);
    ggml_tensor* v = ggml_new_tensor_3d(context, GGML_TYPE_F16, num_cells, d, kv_heads);  // transposed, as llama.cpp keeps it
    FillKeys(rows, num_keys, k);
    FillValues(rows, num_keys, v);
    ggml_tensor* q = ggml_new_tensor_3d(context, GGML_TYPE_F32, d, heads, num_rows);
    std::memcpy(q->data, queries.data, row_bytes);
    ggml_tensor* mask = ggml_new_tensor_2d(context, GGML_TYPE_F32, num_cells, num_rows);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t cell = 0; cell < num_cells; ++cell) {
        static_cast<float*>(mask->data)[row * num_cells + cell] =
            cell <= state.length + row ? 0.0f : -std::numeric_limits<float>::infinity();
      }
    }
    ggml_tensor* scores = ggml_mul_mat(context, ggml_permute(context, k, 0, 2, 1, 3), ggml_permute(context, q, 0, 2, 1, 3));
    ggml_tensor* weights = ggml_soft_max_ext(context, scores, mask, scale, 0);
    ggml_tensor* sums = ggml_mul_mat(context, v, weights);
    ggml_tensor* result = ggml_cont_2d(context, ggml_permute(context, sums, 0, 2, 1, 3), d * heads, num_rows);
    ggml_cgraph* graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, result);
    OSCAR_CHECK(ggml_graph_compute_with_ctx(context, graph, /*n_threads=*/1) == GGML_STATUS_SUCCESS);
    std::memcpy(out.data, result->data, row_bytes);
    ggml_free(context);
    return {};
  }

 private:
  static void FillKeys(const Layer& rows, int64_t num_keys, ggml_tensor* k) {
    std::memset(k->data, 0, ggml_nbytes(k));
    ggml_cpu_fp32_to_fp16(rows.keys.data(), static_cast<ggml_fp16_t*>(k->data), num_keys * k->ne[0] * k->ne[1]);
  }
  static void FillValues(const Layer& rows, int64_t num_keys, ggml_tensor* v) {
    std::memset(v->data, 0, ggml_nbytes(v));
    const int64_t width = v->ne[1] * v->ne[2];
    for (int64_t key = 0; key < num_keys; ++key) {
      for (int64_t i = 0; i < width; ++i) {
        static_cast<ggml_fp16_t*>(v->data)[i * v->ne[0] + key] =
            ggml_fp32_to_fp16(rows.values[static_cast<size_t>(key * width + i)]);
      }
    }
  }
};

}  // namespace oscar::oracle
