#include "src/engine/ops/cpu/ggml_ops.h"

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/ops/cpu/block_product.h"
#include "src/engine/ops/cpu/ggml_kv_cache.h"
#include "src/engine/ops/cpu/tiled_product.h"

namespace oscar::engine {
namespace {

// Decode repeats one shape; a scheduler with changing batch sizes and prefill alternate among a few. A shape costs about
// 60 KB per layer.
constexpr size_t kKeptShapes = 4;

}  // namespace

Result<std::unique_ptr<Ops>> MakeCpuOps(int num_threads, int max_tokens, BatchRounding rounding) {
  if (num_threads < 1 || num_threads > GGML_MAX_N_THREADS) {
    return {StatusCode::kInvalidArgument, "the number of threads is " + std::to_string(num_threads) + ", not 1 to " +
                                              std::to_string(GGML_MAX_N_THREADS)};
  }
  return std::unique_ptr<Ops>(std::make_unique<GgmlOps>(num_threads, max_tokens, rounding));
}

Status GgmlOps::Place(const Weight& weight) {
  if (weight.is_random) return {StatusCode::kUnsupported, "random weights are for the CUDA device: add --device cuda"};
  return {};
}

Result<std::unique_ptr<KvCache>> GgmlOps::NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) {
  if (method.codec != nullptr && method.codec->name == "f16") {
    return GgmlKvCache::Create(method, std::move(profile), config, executor_, [this](bool in_flight) { plain_products_ = in_flight; });
  }
  return KvCache::Create(method, std::move(profile), config, executor_);
}

Result<MomentAccumulator> GgmlOps::NewMoments(const KvShape& shape, const OscarFitOptions& options) {
  OSCAR_TRY(CheckOscarFit(shape, options));
  return MomentAccumulator(shape, options);
}

Result<BalancedMoments> GgmlOps::NewBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens) {
  OSCAR_TRY(CheckBalancedFit(shape, {}));
  return BalancedMoments(shape, std::move(rotary), expected_tokens);
}

Status GgmlOps::ReadSlots(const float* values, std::span<float> out) {
  std::copy_n(values, out.size(), out.begin());
  return {};
}

Result<float*> GgmlOps::AllocateSlots(std::size_t num_floats) {
  OSCAR_ASSIGN_OR_RETURN(base::Buffer memory, base::Buffer::Allocate(num_floats * sizeof(float)));
  slot_memory_.push_back(std::move(memory));
  return reinterpret_cast<float*>(slot_memory_.back().data());
}

GgmlOps::GgmlOps(int num_threads, int max_tokens, BatchRounding rounding)
    : executor_(num_threads), tokens_(max_tokens), positions_(max_tokens), output_rows_(max_tokens), rounding_(rounding) {}

void GgmlOps::SetInputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                        std::span<const int32_t> output_rows) {
  OSCAR_CHECK(tokens.size() <= tokens_.size() && positions.size() == tokens.size() && output_rows.size() <= tokens.size());
  std::ranges::copy(tokens, tokens_.begin());
  std::ranges::copy(positions, positions_.begin());
  std::ranges::copy(output_rows, output_rows_.begin());
}

GgmlOps::KeptShape& GgmlOps::ShapeOf(const RecordingKey& key) {
  const auto found = std::ranges::find_if(shapes_, [&](const KeptShape& shape) {
    return shape.num_tokens == key.num_tokens && shape.num_output_rows == key.num_output_rows && shape.plain_products == plain_products_;
  });
  if (found != shapes_.end()) {
    shapes_.splice(shapes_.begin(), shapes_, found);
  } else {
    if (shapes_.size() >= kKeptShapes) shapes_.pop_back();
    shapes_.push_front({key.num_tokens, key.num_output_rows, plain_products_, {}});
  }
  return shapes_.front();
}

bool GgmlOps::Begin(const RecordingKey& key) {
  OSCAR_CHECK(key.num_tokens >= 1 && key.num_tokens <= static_cast<int>(tokens_.size()));
  KeptShape& shape = ShapeOf(key);
  const auto segment = static_cast<size_t>(key.segment);
  if (shape.graphs.size() <= segment) shape.graphs.resize(segment + 1);
  std::unique_ptr<GgmlGraph>& graph = shape.graphs[segment];
  is_new_ = graph == nullptr;
  prepared_rows_.clear();
  tiled_activations_ = dot_activations_ = {};
  if (is_new_) graph = std::make_unique<GgmlGraph>(key);
  graph_ = graph.get();
  return is_new_;
}

Status GgmlOps::PlaceNewGraph() {
  const size_t bytes = graph_->scratch_bytes();
  if (scratch_.size() < bytes) {
    for (KeptShape& shape : shapes_) {
      for (auto& graph : shape.graphs) {
        if (graph.get() != graph_) graph.reset();  // it points into the old scratch
      }
    }
    OSCAR_TRY(scratch_.GrowTo(bytes));
  }
  graph_->Place(scratch_.data(), executor_.num_threads(), executor_.threadpool());
  return work_.GrowTo(graph_->work_bytes());
}

Status GgmlOps::Submit() {
  OSCAR_CHECK(graph_ != nullptr);
  if (is_new_) {
    if (const Status placed = PlaceNewGraph(); !placed.ok()) {
      shapes_.clear();  // an unplaced recording must not be taken for a kept one
      graph_ = nullptr;
      return placed;
    }
  }
  if (graph_->Compute(slots_, work_.data()) != GGML_STATUS_SUCCESS) {
    return {StatusCode::kInternal, "ggml failed to compute segment " + std::to_string(graph_->key().segment)};
  }
  return {};
}

ggml_tensor* GgmlOps::IndexLeaf(std::vector<int32_t>& values, int count) {
  ggml_tensor* leaf = ggml_new_tensor_1d(context(), GGML_TYPE_I32, count);
  leaf->data = values.data();
  return leaf;
}

Tensor GgmlOps::Load(Slot slot, int width) {
  ggml_tensor* leaf = ggml_new_tensor_2d(context(), GGML_TYPE_F32, width, graph_->key().num_tokens);
  graph_->AddInput(leaf, slot);
  return {leaf};
}

Tensor GgmlOps::Embed(const Weight& table) {
  OSCAR_CHECK(table.dims.size() == 2);
  return {ggml_get_rows(context(), table.tensor, IndexLeaf(tokens_, graph_->key().num_tokens))};
}

Tensor GgmlOps::MatMul(const Weight& matrix, Tensor x) {
  OSCAR_CHECK_MSG(matrix.dims.size() == 2 && matrix.dims[0] == x.node->ne[0] && x.node->ne[2] == 1, matrix.name);
  if (plain_products_) return {ggml_mul_mat(context(), matrix.tensor, x.node)};
  const bool invariant = rounding_ == BatchRounding::kInvariant;
  const int64_t num_rows = x.node->ne[1];
  if (!invariant && HasTiledProduct(matrix.type) && num_rows >= LeastTiledTokens(matrix.type)) return {MatMulTiled(matrix, x.node)};
  // A few rows one after the other as well, but those of K-quants, of which ggml has good tiles.
  const bool by_rows = num_rows == 1 || invariant || BlockProductOf(matrix.type) != nullptr;
  const RowProduct* const row_product = by_rows ? RowProductOf(matrix.type) : nullptr;
  if (row_product != nullptr) return {MatMulRows(matrix, *row_product, x.node)};
  return {invariant ? MatMulByDots(matrix, x.node) : ggml_mul_mat(context(), matrix.tensor, x.node)};
}

// Two nodes: activations rounded once for all matrices of a format that take the same ones, and rows of the matrix shared out among all
// threads, four at a time; some of them for all activations, while they are in the first cache.
ggml_tensor* GgmlOps::MatMulRows(const Weight& matrix, const RowProduct& product, ggml_tensor* x) {
  OSCAR_CHECK(x->type == GGML_TYPE_F32 && ggml_is_contiguous(x));
  const int64_t num_rows = x->ne[1];
  auto found = std::ranges::find_if(prepared_rows_, [&](const PreparedRows& rows) { return rows.x == x && rows.product == &product; });
  if (found == prepared_rows_.end()) {
    const ggml_custom_op_t prepare = [](ggml_tensor* node, int thread, int num_threads, void* with) {
      const ggml_tensor* from = node->src[0];
      for (int64_t row = thread; row < from->ne[1]; row += num_threads) {
        static_cast<const RowProduct*>(with)->prepare(static_cast<const float*>(from->data) + row * from->ne[0], from->ne[0],
                                                      static_cast<std::byte*>(node->data) + row * node->ne[0]);
      }
    };
    const auto bytes = static_cast<int64_t>(product.activation_bytes(x->ne[0]));
    prepared_rows_.push_back({x, &product, ggml_custom_4d(context(), GGML_TYPE_I8, bytes, num_rows, 1, 1, &x, 1, prepare, num_rows == 1 ? 1 : GGML_N_TASKS_MAX,
                                                          const_cast<RowProduct*>(&product))});
    found = prepared_rows_.end() - 1;
  }
  const ggml_custom_op_t multiply = [](ggml_tensor* node, int thread, int num_threads, void* weights) {
    const auto* tensor = static_cast<const ggml_tensor*>(weights);
    const RowProduct& with = *RowProductOf(tensor->type);
    const ggml_tensor* from = node->src[0];
    const int64_t out = node->ne[0], fours = (out + 3) / 4;
    const int64_t first = fours * thread / num_threads * 4, end = std::min(out, fours * (thread + 1) / num_threads * 4);
    const int64_t group = node->ne[1] == 1 ? std::max<int64_t>(end - first, 1) : 16;
    for (int64_t begin = first; begin < end; begin += group) {
      for (int64_t row = 0; row < node->ne[1]; ++row) {
        with.multiply(static_cast<const std::byte*>(tensor->data), static_cast<const std::byte*>(from->data) + row * from->ne[0], tensor->ne[0], begin,
                      std::min(end, begin + group), static_cast<float*>(node->data) + row * out);
      }
    }
  };
  return ggml_custom_4d(context(), GGML_TYPE_F32, matrix.dims[1], num_rows, 1, 1, &found->prepared, 1, multiply, GGML_N_TASKS_MAX, matrix.tensor);
}

// Two nodes again: activations rounded by all threads, once for all matrices that take the same ones, and panels of rows shared out.
ggml_tensor* GgmlOps::MatMulTiled(const Weight& matrix, ggml_tensor* x) {
  OSCAR_CHECK(x->type == GGML_TYPE_F32 && ggml_is_contiguous(x));
  static constexpr auto kPanelsAt = [](int64_t width, int64_t num_tokens) { return (TiledActivationBytes(width, num_tokens) + 63) / 64 * 64; };
  static constexpr auto kShare = [](int64_t count, int thread, int num_threads) { return count * thread / num_threads; };
  if (tiled_activations_.first != x) {
    const ggml_custom_op_t prepare = [](ggml_tensor* node, int thread, int num_threads, void*) {
      const ggml_tensor* from = node->src[0];
      const TiledActivations to{static_cast<std::byte*>(node->data), from->ne[0], from->ne[1]};
      PrepareTiledActivations(static_cast<const float*>(from->data), to, kShare(to.num_tokens, thread, num_threads), kShare(to.num_tokens, thread + 1, num_threads));
    };
    const size_t bytes = kPanelsAt(x->ne[0], x->ne[1]) + static_cast<size_t>(executor_.num_threads()) * TiledPanelBytes(x->ne[0]);
    tiled_activations_ = {x, ggml_custom_4d(context(), GGML_TYPE_I8, static_cast<int64_t>(bytes), 1, 1, 1, &x, 1, prepare, GGML_N_TASKS_MAX, nullptr)};
  }
  const ggml_custom_op_t multiply = [](ggml_tensor* node, int thread, int num_threads, void* matrix_tensor) {
    const auto* tensor = static_cast<const ggml_tensor*>(matrix_tensor);
    const TiledWeights weights{static_cast<uint32_t>(tensor->type), static_cast<const std::byte*>(tensor->data), tensor->ne[1]};
    const TiledActivations activations{static_cast<std::byte*>(node->src[0]->data), tensor->ne[0], node->ne[1]};
    const int64_t panels = (weights.num_rows + kTiledProductRows - 1) / kTiledProductRows;
    const int64_t first = kShare(panels, thread, num_threads) * kTiledProductRows, end = kShare(panels, thread + 1, num_threads) * kTiledProductRows;
    std::byte* panel = activations.prepared + kPanelsAt(activations.width, activations.num_tokens) + static_cast<size_t>(thread) * TiledPanelBytes(activations.width);
    MultiplyTiled(weights, activations, first, std::min(end, weights.num_rows), panel, static_cast<float*>(node->data));
  };
  return ggml_custom_4d(context(), GGML_TYPE_F32, matrix.dims[1], x->ne[1], 1, 1, &tiled_activations_.second, 1, multiply, GGML_N_TASKS_MAX, matrix.tensor);
}

// ggml takes several rows through tiles whose sums have another order than its dot products, which are all that a single row gets.
// Two nodes, as above: activations in the type that the dot products take, then the products, a group of weight rows at a time for
// all rows of activations.
ggml_tensor* GgmlOps::MatMulByDots(const Weight& matrix, ggml_tensor* x) {
  OSCAR_CHECK(x->type == GGML_TYPE_F32 && ggml_is_contiguous(x));
  const int64_t width = x->ne[0], num_rows = x->ne[1];
  const ggml_type dot_type = ggml_get_type_traits_cpu(matrix.tensor->type)->vec_dot_type;
  if (dot_type != GGML_TYPE_F32 && (dot_activations_.first != x || dot_type_ != dot_type)) {
    const ggml_custom_op_t convert = [](ggml_tensor* node, int thread, int num_threads, void* weights) {
      const ggml_tensor* from = node->src[0];
      const ggml_type type = ggml_get_type_traits_cpu(static_cast<const ggml_tensor*>(weights)->type)->vec_dot_type;
      const ggml_from_float_t convert_row = ggml_get_type_traits_cpu(type)->from_float;
      for (int64_t row = thread; row < from->ne[1]; row += num_threads) {
        convert_row(static_cast<const float*>(from->data) + row * from->ne[0], static_cast<char*>(node->data) + row * node->ne[0], from->ne[0]);
      }
    };
    const auto bytes = static_cast<int64_t>(ggml_row_size(dot_type, width));
    dot_activations_ = {x, ggml_custom_4d(context(), GGML_TYPE_I8, bytes, num_rows, 1, 1, &x, 1, convert, GGML_N_TASKS_MAX, matrix.tensor)};
    dot_type_ = dot_type;
  }
  const ggml_custom_op_t multiply = [](ggml_tensor* node, int thread, int num_threads, void* weights) {
    constexpr int64_t kGroup = 16;  // weight rows that stay in the first cache while the activations pass
    const auto* tensor = static_cast<const ggml_tensor*>(weights);
    const ggml_vec_dot_t dot = ggml_get_type_traits_cpu(tensor->type)->vec_dot;
    const size_t weight_bytes = ggml_row_size(tensor->type, tensor->ne[0]);
    const ggml_tensor* from = node->src[0];
    const int64_t out = node->ne[0], groups = (out + kGroup - 1) / kGroup;
    for (int64_t group = groups * thread / num_threads; group < groups * (thread + 1) / num_threads; ++group) {
      for (int64_t row = 0; row < node->ne[1]; ++row) {
        float* to = static_cast<float*>(node->data) + row * out;
        const char* activations = static_cast<const char*>(from->data) + static_cast<size_t>(row) * from->nb[1];
        for (int64_t i = group * kGroup; i < std::min(out, (group + 1) * kGroup); ++i) {
          dot(static_cast<int>(tensor->ne[0]), to + i, 0, static_cast<const char*>(tensor->data) + static_cast<size_t>(i) * weight_bytes, 0, activations, 0, 1);
        }
      }
    }
  };
  ggml_tensor* source = dot_type == GGML_TYPE_F32 ? x : dot_activations_.second;
  return ggml_custom_4d(context(), GGML_TYPE_F32, matrix.dims[1], num_rows, 1, 1, &source, 1, multiply, GGML_N_TASKS_MAX, matrix.tensor);
}

Tensor GgmlOps::AddBias(Tensor x, const Weight& bias) {
  OSCAR_CHECK_MSG(bias.dims.size() == 1 && bias.dims[0] == x.node->ne[0], bias.name);
  return {ggml_add(context(), x.node, bias.tensor)};
}

Tensor GgmlOps::Add(Tensor a, Tensor b) {
  OSCAR_CHECK(ggml_are_same_shape(a.node, b.node));
  return {ggml_add(context(), a.node, b.node)};
}

Tensor GgmlOps::RmsNorm(Tensor x, const Weight& gain, float epsilon) {
  const int64_t group = gain.dims[0];
  OSCAR_CHECK_MSG(gain.dims.size() == 1 && x.node->ne[0] % group == 0, gain.name);
  ggml_tensor* rows = x.node;
  if (rows->ne[0] != group) rows = ggml_reshape_3d(context(), rows, group, rows->ne[0] / group, rows->ne[1]);
  // The two nodes are one loop in ggml when the second follows the first directly.
  return {ggml_mul(context(), ggml_rms_norm(context(), rows, epsilon), gain.tensor)};
}

Tensor GgmlOps::Rope(Tensor x, int head_dim, const RopeParams& params, const Weight* factors) {
  const int num_tokens = graph_->key().num_tokens;
  OSCAR_CHECK(ggml_nelements(x.node) % (int64_t{head_dim} * num_tokens) == 0);
  OSCAR_CHECK(params.dims % 2 == 0 && params.dims <= head_dim);
  OSCAR_CHECK(factors == nullptr || factors->dims[0] * 2 == params.dims);
  const int64_t num_heads = ggml_nelements(x.node) / (int64_t{head_dim} * num_tokens);
  ggml_tensor* heads = ggml_reshape_3d(context(), x.node, head_dim, num_heads, num_tokens);
  return {ggml_rope_ext(context(), heads, IndexLeaf(positions_, num_tokens), factors != nullptr ? factors->tensor : nullptr,
                        params.dims, params.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL, params.original_context,
                        params.base, params.frequency_scale, params.yarn_mix, params.magnitude, params.beta_fast,
                        params.beta_slow)};
}

Tensor GgmlOps::SwiGlu(Tensor gate, Tensor up) {
  OSCAR_CHECK(ggml_are_same_shape(gate.node, up.node));
  return {ggml_swiglu_split(context(), gate.node, up.node)};
}

Tensor GgmlOps::GatherOutputRows(Tensor x) {
  const RecordingKey& key = graph_->key();
  if (key.num_output_rows == key.num_tokens) return x;  // all rows, in order
  return {ggml_get_rows(context(), x.node, IndexLeaf(output_rows_, key.num_output_rows))};
}

}  // namespace oscar::engine
