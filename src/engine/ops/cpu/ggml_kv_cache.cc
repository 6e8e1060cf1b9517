#include "src/engine/ops/cpu/ggml_kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <ggml-cpu.h>
#include <ggml.h>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

constexpr int64_t kCellStep = 256;  // llama.cpp attends to a multiple of this, the rest masked
constexpr float kLargestF16 = 65504.0f;

int64_t PadCells(int64_t tokens) { return (tokens + kCellStep - 1) / kCellStep * kCellStep; }

std::string Name(SequenceId id) { return "sequence " + std::to_string(id); }

// Hands out parts of one buffer, aligned as ggml wants them.
class Carver {
 public:
  explicit Carver(std::byte* data) : data_(data) {}
  void Give(ggml_tensor* tensor) {
    tensor->data = data_ + used_;
    used_ += GGML_PAD(ggml_nbytes(tensor), 64);
  }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

}  // namespace

Result<std::unique_ptr<KvCache>> GgmlKvCache::Create(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config,
                                                     GgmlExecutor& executor, StepObserver observer) {
  if (!(profile.shape() == config.shape)) return {StatusCode::kInvalidArgument, "the profile was made for another attention shape"};
  if (config.max_tokens < 1 || config.max_tokens > std::numeric_limits<int>::max() - kCellStep) {
    return {StatusCode::kInvalidArgument, "a KV cache of " + std::to_string(config.max_tokens) + " tokens"};
  }
  if (config.max_sequences < 1 || config.max_step_tokens < 1) {
    return {StatusCode::kInvalidArgument, "a KV cache needs at least one sequence and one token in a step"};
  }
  return std::unique_ptr<KvCache>(new GgmlKvCache(method, std::move(profile), config, executor, std::move(observer)));
}

GgmlKvCache::GgmlKvCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config, GgmlExecutor& executor, StepObserver observer)
    : method_(method), profile_(std::move(profile)), config_(config), executor_(executor), observer_(std::move(observer)) {}

GgmlKvCache::~GgmlKvCache() {
  if (steps_in_flight_ > 0) observer_(false);
}

void GgmlKvCache::SetReserved(Sequence& sequence, int num_tokens) {
  const int before = steps_in_flight_;
  steps_in_flight_ += (num_tokens > 0 ? 1 : 0) - (sequence.reserved > 0 ? 1 : 0);
  sequence.reserved = num_tokens;
  if ((before > 0) != (steps_in_flight_ > 0)) observer_(steps_in_flight_ > 0);
}

Result<GgmlKvCache::Sequence*> GgmlKvCache::Get(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return {StatusCode::kNotFound, Name(id) + " does not exist"};
  return &found->second;
}

Result<GgmlKvCache::Sequence*> GgmlKvCache::GetIdle(SequenceId id) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, Get(id));
  if (sequence->reserved > 0) return {StatusCode::kFailedPrecondition, Name(id) + " has a step in flight"};
  return sequence;
}

int64_t GgmlKvCache::TokensHeld() const {
  int64_t tokens = 0;
  for (const auto& [id, sequence] : sequences_) tokens += sequence.length + sequence.reserved;
  return tokens;
}

Result<SequenceId> GgmlKvCache::NewSequence() {
  if (std::ssize(sequences_) >= config_.max_sequences) {
    return {StatusCode::kResourceExhausted, "all " + std::to_string(config_.max_sequences) + " sequences of the cache are in use"};
  }
  sequences_[next_id_].layers.resize(static_cast<size_t>(config_.shape.num_layers));
  return next_id_++;
}

Result<SequenceId> GgmlKvCache::Fork(SequenceId sequence) {
  OSCAR_ASSIGN_OR_RETURN(const Sequence* const from, GetIdle(sequence));
  if (TokensHeld() + from->length > config_.max_tokens) {
    return {StatusCode::kResourceExhausted, "a copy of " + Name(sequence) + " needs " + std::to_string(from->length) + " tokens; the cache holds " +
                                                std::to_string(config_.max_tokens)};
  }
  OSCAR_ASSIGN_OR_RETURN(std::vector<Layer> layers, CopyLayers(*from, from->capacity));
  OSCAR_ASSIGN_OR_RETURN(const SequenceId id, NewSequence());
  Sequence& copy = sequences_[id];
  copy.layers = std::move(layers);
  copy.capacity = from->capacity;
  copy.length = from->length;
  return id;
}

Result<int> GgmlKvCache::Truncate(SequenceId sequence, int length) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const state, GetIdle(sequence));
  if (length < 0 || length > state->length) {
    return {StatusCode::kInvalidArgument, Name(sequence) + " has " + std::to_string(state->length) + " tokens and cannot be cut to " +
                                              std::to_string(length)};
  }
  state->length = length;
  return length;
}

Status GgmlKvCache::Release(SequenceId sequence) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const state, Get(sequence));
  SetReserved(*state, 0);
  sequences_.erase(sequence);
  return {};
}

int GgmlKvCache::length(SequenceId sequence) const {
  const auto found = sequences_.find(sequence);
  OSCAR_CHECK(found != sequences_.end());
  return found->second.length;
}

Result<std::vector<GgmlKvCache::Layer>> GgmlKvCache::CopyLayers(const Sequence& from, int64_t capacity) const {
  std::vector<Layer> layers(from.layers.size());
  const auto bytes = static_cast<size_t>(capacity * width()) * sizeof(ggml_fp16_t);
  const auto used = static_cast<size_t>(from.length) * sizeof(ggml_fp16_t);
  for (size_t i = 0; i < layers.size(); ++i) {
    OSCAR_ASSIGN_OR_RETURN(layers[i].keys, base::Buffer::Allocate(bytes));
    OSCAR_ASSIGN_OR_RETURN(layers[i].values, base::Buffer::Allocate(bytes));
    if (from.length == 0) continue;
    std::memcpy(layers[i].keys.data(), from.layers[i].keys.data(), used * static_cast<size_t>(width()));
    for (int64_t channel = 0; channel < width(); ++channel) {
      std::memcpy(layers[i].values.data() + static_cast<size_t>(channel * capacity) * sizeof(ggml_fp16_t),
                  from.layers[i].values.data() + static_cast<size_t>(channel * from.capacity) * sizeof(ggml_fp16_t), used);
    }
  }
  return layers;
}

Status GgmlKvCache::Grow(Sequence& sequence, int64_t tokens) {
  if (tokens <= sequence.capacity) return {};
  const int64_t capacity = std::min(PadCells(std::max(tokens, sequence.capacity * 3 / 2)), PadCells(config_.max_tokens));
  OSCAR_ASSIGN_OR_RETURN(sequence.layers, CopyLayers(sequence, capacity));
  sequence.capacity = capacity;
  return {};
}

Status GgmlKvCache::Reserve(SequenceId sequence, int num_tokens) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const state, GetIdle(sequence));
  if (num_tokens < 1 || num_tokens > config_.max_step_tokens) {
    return {StatusCode::kInvalidArgument, "a step of " + std::to_string(num_tokens) + " tokens; the cache takes 1 to " +
                                              std::to_string(config_.max_step_tokens)};
  }
  if (TokensHeld() + num_tokens > config_.max_tokens) {
    return {StatusCode::kResourceExhausted, Name(sequence) + " needs " + std::to_string(num_tokens) + " more tokens; of " +
                                                std::to_string(config_.max_tokens) + " in the cache " + std::to_string(TokensHeld()) + " are in use"};
  }
  OSCAR_TRY(Grow(*state, int64_t{state->length} + num_tokens));
  SetReserved(*state, num_tokens);
  state->appended = 0;
  return {};
}

Status GgmlKvCache::CheckRows(const Sequence& sequence, int layer, KvSide side, RowsView<const float> rows) const {
  for (int token = 0; token < rows.num_tokens; ++token) {
    for (int head = 0; head < rows.num_heads; ++head) {
      const float* row = rows.Row(token, head);
      // Negated, so that NaN is refused as well.
      if (std::all_of(row, row + rows.head_dim, [](float value) { return std::abs(value) <= kLargestF16; })) continue;
      return {StatusCode::kNonFinite, std::string(side == KvSide::kKey ? "K" : "V") + " of layer " + std::to_string(layer) + ", KV head " +
                                          std::to_string(head) + ", position " + std::to_string(sequence.length + token) +
                                          " is not finite in fp16"};
    }
  }
  return {};
}

void GgmlKvCache::StoreRows(const Sequence& sequence, Layer& layer, RowsView<const float> keys, RowsView<const float> values) const {
  const int64_t d = config_.shape.head_dim;
  auto* k = reinterpret_cast<ggml_fp16_t*>(layer.keys.data());
  auto* v = reinterpret_cast<ggml_fp16_t*>(layer.values.data());
  for (int token = 0; token < keys.num_tokens; ++token) {
    const int64_t cell = sequence.length + token;
    for (int head = 0; head < keys.num_heads; ++head) {
      ggml_cpu_fp32_to_fp16(keys.Row(token, head), k + cell * width() + head * d, d);
      const float* row = values.Row(token, head);
      for (int64_t i = 0; i < d; ++i) v[(head * d + i) * sequence.capacity + cell] = ggml_fp32_to_fp16(row[i]);
    }
  }
}

Status GgmlKvCache::Append(SequenceId sequence, int layer, RowsView<const float> keys, RowsView<const float> values) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const state, Get(sequence));
  const KvShape& shape = config_.shape;
  if (state->reserved == 0 || layer != state->appended) {
    return {StatusCode::kFailedPrecondition, Name(sequence) + ": layer " + std::to_string(layer) + " is not the next one of a step in flight"};
  }
  for (const RowsView<const float>& rows : {keys, values}) {
    if (rows.num_tokens != state->reserved || rows.num_heads != shape.num_kv_heads || rows.head_dim != shape.head_dim) {
      return {StatusCode::kInvalidArgument, "rows of another shape than reserved for " + Name(sequence)};
    }
  }
  OSCAR_TRY(CheckRows(*state, layer, KvSide::kKey, keys));
  OSCAR_TRY(CheckRows(*state, layer, KvSide::kValue, values));
  StoreRows(*state, state->layers[static_cast<size_t>(layer)], keys, values);
  ++state->appended;
  return {};
}

Status GgmlKvCache::Attend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries, RowsView<float> out) {
  if (!std::isfinite(scale)) return {StatusCode::kInvalidArgument, "the attention scale is not finite"};
  int first = 0;
  for (const SequenceId id : sequences) {
    OSCAR_ASSIGN_OR_RETURN(const Sequence* const state, Get(id));
    if (layer < 0 || layer >= state->appended) {
      return {StatusCode::kFailedPrecondition, Name(id) + ": layer " + std::to_string(layer) + " was not appended"};
    }
    if (first + state->reserved > queries.num_tokens || queries.num_tokens != out.num_tokens) break;
    OSCAR_TRY(AttendOne(*state, state->layers[static_cast<size_t>(layer)], scale, queries.Slice(first, state->reserved),
                        out.Slice(first, state->reserved)));
    first += state->reserved;
  }
  if (first != queries.num_tokens || first != out.num_tokens) {
    return {StatusCode::kInvalidArgument, "the rows of queries are not those that the sequences reserved"};
  }
  return {};
}

// llama.cpp's graph of one layer. Scores become weights in place, as its allocator has it too.
Status GgmlKvCache::AttendOne(const Sequence& sequence, const Layer& layer, float scale, RowsView<const float> queries, RowsView<float> out) {
  constexpr size_t kNodes = 32;
  const KvShape& shape = config_.shape;
  const int64_t d = shape.head_dim, kv_heads = shape.num_kv_heads, heads = shape.num_query_heads;
  const int64_t num_rows = queries.num_tokens, num_cells = PadCells(int64_t{sequence.length} + num_rows);
  OSCAR_TRY(nodes_.GrowTo(kNodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodes, /*grads=*/false)));
  ggml_context* context = ggml_init({.mem_size = nodes_.size(), .mem_buffer = nodes_.data(), .no_alloc = true});
  OSCAR_CHECK(context != nullptr);
  // Scores, mask, sums; each padded.
  const auto floats = static_cast<size_t>(num_cells * num_rows * (heads + 1) + num_rows * heads * d);
  if (Status grown = intermediates_.GrowTo(floats * sizeof(float) + 4 * 64); !grown.ok()) {
    ggml_free(context);
    return grown;
  }
  Carver carver(intermediates_.data());

  ggml_tensor* k = ggml_new_tensor_3d(context, GGML_TYPE_F16, d, kv_heads, num_cells);
  k->data = layer.keys.data();
  ggml_tensor* all_values = ggml_new_tensor_3d(context, GGML_TYPE_F16, sequence.capacity, d, kv_heads);
  all_values->data = layer.values.data();
  ggml_tensor* v = ggml_view_3d(context, all_values, num_cells, d, kv_heads, all_values->nb[1], all_values->nb[2], 0);
  ggml_tensor* q = ggml_new_tensor_3d(context, GGML_TYPE_F32, d, heads, num_rows);
  q->data = const_cast<float*>(queries.data);
  q->nb[1] = static_cast<size_t>(queries.head_stride) * sizeof(float);
  q->nb[2] = static_cast<size_t>(queries.token_stride) * sizeof(float);
  ggml_tensor* mask = ggml_new_tensor_2d(context, GGML_TYPE_F32, num_cells, num_rows);
  carver.Give(mask);
  for (int64_t row = 0; row < num_rows; ++row) {
    float* cells = static_cast<float*>(mask->data) + row * num_cells;
    const int64_t num_seen = sequence.length + row + 1;
    std::fill(cells, cells + num_seen, 0.0f);
    std::fill(cells + num_seen, cells + num_cells, -std::numeric_limits<float>::infinity());
  }
  ggml_tensor* scores = ggml_mul_mat(context, ggml_permute(context, k, 0, 2, 1, 3), ggml_permute(context, q, 0, 2, 1, 3));
  carver.Give(scores);
  ggml_tensor* weights = ggml_soft_max_ext_inplace(context, scores, mask, scale, /*max_bias=*/0);
  ggml_tensor* sums = ggml_mul_mat(context, v, weights);
  carver.Give(sums);
  ggml_tensor* result = ggml_new_tensor_3d(context, GGML_TYPE_F32, d, heads, num_rows);
  result->data = out.data;
  result->nb[1] = static_cast<size_t>(out.head_stride) * sizeof(float);
  result->nb[2] = static_cast<size_t>(out.token_stride) * sizeof(float);

  ggml_cgraph* graph = ggml_new_graph_custom(context, kNodes, /*grads=*/false);
  ggml_build_forward_expand(graph, ggml_cpy(context, ggml_permute(context, sums, 0, 2, 1, 3), result));
  ggml_cplan plan = ggml_graph_plan(graph, executor_.num_threads(), executor_.threadpool());
  Status status = work_.GrowTo(plan.work_size);
  if (status.ok()) {
    plan.work_data = reinterpret_cast<uint8_t*>(work_.data());
    if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) status = {StatusCode::kInternal, "ggml failed to compute attention"};
  }
  ggml_free(context);
  return status;
}

Status GgmlKvCache::Commit(SequenceId sequence, int num_tokens) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const state, Get(sequence));
  if (state->reserved == 0) return {StatusCode::kFailedPrecondition, Name(sequence) + " has no step in flight"};
  if (num_tokens < 0 || num_tokens > state->reserved) {
    return {StatusCode::kInvalidArgument, std::to_string(num_tokens) + " tokens of a step of " + std::to_string(state->reserved)};
  }
  if (num_tokens > 0 && state->appended != config_.shape.num_layers) {
    return {StatusCode::kFailedPrecondition, Name(sequence) + ": only " + std::to_string(state->appended) + " layers were appended"};
  }
  state->length += num_tokens;
  SetReserved(*state, 0);
  return {};
}

void GgmlKvCache::Abandon(SequenceId sequence) {
  const auto found = sequences_.find(sequence);
  if (found != sequences_.end()) SetReserved(found->second, 0);
}

KvCacheStats GgmlKvCache::stats() const {
  KvCacheStats stats;
  stats.bf16_page_bytes = static_cast<size_t>(config_.shape.num_layers * width() * kPageTokens * 2) * sizeof(ggml_fp16_t);
  for (const auto& [id, sequence] : sequences_) {
    stats.bf16_pages_total += static_cast<int>(sequence.capacity / kPageTokens);
    stats.bf16_pages_used += (sequence.length + sequence.reserved + kPageTokens - 1) / kPageTokens;
  }
  stats.workspace_bytes = nodes_.size() + intermediates_.size() + work_.size();
  return stats;
}

Status GgmlKvCache::ReadEncodedPage(SequenceId sequence, int, int, std::span<std::byte>) const {
  return {StatusCode::kNotFound, Name(sequence) + " has no encoded pages: " + method_.name() + " encodes nothing"};
}

}  // namespace oscar::engine
