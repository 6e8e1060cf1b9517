#include "src/engine/models/model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/models/arch.h"
#include "src/engine/models/decoder_config.h"
#include "src/engine/models/host_rows.h"
#include "src/engine/ops/ops.h"
#include "src/engine/ops/rope_angles.h"
#include "src/engine/weights/checkpoint.h"
#include "src/engine/weights/dequantize.h"
#include "src/engine/weights/random_checkpoint.h"

namespace oscar::engine {
namespace {

int64_t SizeOf(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case Extent::kHidden: return config.hidden_size;
    case Extent::kFfn: return config.ffn_size;
    case Extent::kVocab: return config.vocab_size;
    case Extent::kQueryWidth: return int64_t{config.kv.num_query_heads} * config.kv.head_dim;
    case Extent::kKvWidth: return int64_t{config.kv.num_kv_heads} * config.kv.head_dim;
    case Extent::kHeadDim: return config.kv.head_dim;
    case Extent::kRopePairs: return config.rope_dims / 2;
    case Extent::kExperts: return config.num_experts;
    case Extent::kNone: break;
  }
  return 0;
}

template <class Weights>
Status LoadWeights(std::span<const TensorRule<Weights>> rules, const std::string& prefix, const ModelConfig& config,
                   Checkpoint& checkpoint, Weights& weights) {
  for (const TensorRule<Weights>& rule : rules) {
    std::vector<int64_t> dims;
    for (Extent extent : rule.dims) {
      if (extent != Extent::kNone) dims.push_back(SizeOf(extent, config));
    }
    const std::string name = prefix + std::string(rule.name);
    OSCAR_ASSIGN_OR_RETURN(weights.*rule.member, rule.presence == Presence::kRequired ? checkpoint.Require(name, dims)
                                                                                      : checkpoint.Find(name, dims));
  }
  return {};
}

std::vector<float> FactorsOf(const Weight* factors) {
  if (factors == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(factors->dims[0]));
  std::memcpy(values.data(), factors->bytes.data(), values.size() * sizeof(float));
  return values;
}

Status CheckFactors(const Weight* factors) {
  for (float factor : FactorsOf(factors)) {
    if (!(factor > 0) || !std::isfinite(factor)) {
      return {StatusCode::kCorruptData, "tensor \"" + factors->name + "\" has the frequency factor " + std::to_string(factor)};
    }
  }
  return {};
}

// Random weights have none of their own and are BF16 on the device.
uint64_t BytesOf(const Weight* weight) {
  return weight->is_random ? 2 * static_cast<uint64_t>(weight->dims[0] * NumRows(*weight)) : weight->bytes.size();
}

// Index of the first value that is NaN or infinite, or -1. Integer tests, because the compiler cannot reorder float sums.
int64_t FirstNonFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7F800000;
  constexpr size_t kStep = 4096;
  for (size_t start = 0; start < values.size(); start += kStep) {
    const std::span<const float> part = values.subspan(start, std::min(kStep, values.size() - start));
    uint32_t num_bad = 0;
    for (float value : part) num_bad += (std::bit_cast<uint32_t>(value) & kExponent) == kExponent;
    if (num_bad == 0) continue;
    for (size_t i = 0; i < part.size(); ++i) {
      if (!std::isfinite(part[i])) return static_cast<int64_t>(start + i);
    }
  }
  return -1;
}

class LoadedModel final : public Model {
 public:
  LoadedModel(const ModelArch& arch, ModelContext context, std::unique_ptr<Checkpoint> checkpoint, std::unique_ptr<Ops> ops)
      : arch_(arch), context_(std::move(context)), checkpoint_(std::move(checkpoint)), ops_(std::move(ops)) {}

  // Memory of the slots, for the largest step.
  Status Allocate() {
    const KvShape& kv = context_.config.kv;
    const size_t query_width = static_cast<size_t>(kv.num_query_heads) * static_cast<size_t>(kv.head_dim);
    const size_t kv_width = static_cast<size_t>(kv.num_kv_heads) * static_cast<size_t>(kv.head_dim);
    const auto hidden = static_cast<size_t>(context_.config.hidden_size);
    OSCAR_ASSIGN_OR_RETURN(float* next, ops_->AllocateSlots((hidden + 2 * query_width + 2 * kv_width) * kMaxStepTokens));
    const auto take = [&](Slot slot, size_t width) {
      float* data = next;
      next += width * kMaxStepTokens;
      ops_->Bind(slot, data);
      return data;
    };
    hidden_ = take(Slot::kHidden, hidden);
    queries_ = take(Slot::kQuery, query_width);
    keys_ = take(Slot::kKey, kv_width);
    values_ = take(Slot::kValue, kv_width);
    attention_ = take(Slot::kAttention, query_width);
    return {};
  }

  const ModelConfig& config() const override { return context_.config; }
  const io::GgufMetadata& metadata() const override { return checkpoint_->metadata(); }
  Executor& executor() override { return ops_->executor(); }
  Result<std::unique_ptr<KvCache>> NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) override {
    return ops_->NewCache(method, std::move(profile), config);
  }
  std::vector<float> rope_angles() const override {
    return RopeAngles(context_.rope, FactorsOf(context_.weights.rope_factors));
  }
  Result<std::vector<float>> AttentionOutputRows(int layer, int first_row, int num_rows) const override {
    return DequantizeRows(*context_.weights.layers[static_cast<size_t>(layer)].attention_output, first_row, num_rows);
  }
  uint64_t weight_bytes() const override { return checkpoint_->weight_bytes(); }
  uint64_t step_weight_bytes() const override {
    const ModelWeights& weights = context_.weights;
    uint64_t unread = weights.output == weights.token_embedding ? 0 : BytesOf(weights.token_embedding);
    const auto experts = static_cast<uint64_t>(context_.config.num_experts), used = static_cast<uint64_t>(context_.config.num_used_experts);
    for (const LayerWeights& layer : weights.layers) {
      for (const Weight* matrices : {layer.expert_gate, layer.expert_up, layer.expert_down}) {
        if (matrices != nullptr) unread += BytesOf(matrices) / experts * (experts - used);
      }
    }
    return weight_bytes() - unread;
  }
  std::optional<uint64_t> free_device_memory() const override { return ops_->free_device_memory(); }
  Result<MomentAccumulator> NewMoments(const OscarFitOptions& options) override { return ops_->NewMoments(context_.config.kv, options); }
  Result<BalancedMoments> NewBalancedMoments(int64_t expected_tokens) override {
    return ops_->NewBalancedMoments(context_.config.kv, rotary(), expected_tokens);
  }

  Status Forward(std::span<const StepSequence> batch, KvCache& cache, std::vector<float>* logits,
                 AttentionObserver* observer) override {
    return Step(batch, cache, {logits, nullptr, {}}, observer);
  }
  Status ForwardGreedy(std::span<const StepSequence> batch, KvCache& cache, std::vector<int32_t>* tokens) override {
    return Step(batch, cache, {nullptr, tokens, {}}, nullptr);
  }
  bool draws_tokens() const override { return !ops_->slots_on_host(); }
  Status ForwardDrawn(std::span<const StepSequence> batch, KvCache& cache, std::span<const TokenDraw> draws, std::vector<int32_t>* tokens) override {
    if (!draws_tokens()) return {StatusCode::kUnsupported, "on the CPU tokens are drawn from logits"};
    const bool is_greedy = std::ranges::all_of(draws, &TokenDraw::is_plain_greedy);
    return Step(batch, cache, {nullptr, tokens, is_greedy ? std::span<const TokenDraw>() : draws}, nullptr);
  }
  Status FillCache(SequenceId sequence, int num_tokens, KvCache& cache) override {
    const KvShape& kv = context_.config.kv;
    while (num_tokens > 0) {
      const int count = std::min({num_tokens, cache.config().max_step_tokens, kMaxStepTokens});
      const RowsView<const float> keys = PackedRows<const float>(keys_, count, kv.num_kv_heads, kv.head_dim);
      const RowsView<const float> values = PackedRows<const float>(values_, count, kv.num_kv_heads, kv.head_dim);
      OSCAR_TRY(cache.Reserve(sequence, count));
      Status appended;
      for (int layer = 0; layer < kv.num_layers && appended.ok(); ++layer) appended = cache.Append(sequence, layer, keys, values);
      if (appended.ok()) appended = cache.Commit(sequence, count);
      if (!appended.ok()) {
        cache.Abandon(sequence);
        return appended;
      }
      num_tokens -= count;
    }
    return {};
  }

 private:
  // What a step is run for; both null: nothing but the cache.
  struct Wanted {
    std::vector<float>* logits;
    std::vector<int32_t>* tokens;      // the best ones, or
    std::span<const TokenDraw> draws;  // those drawn
  };

  Status Step(std::span<const StepSequence> batch, KvCache& cache, const Wanted& wanted, AttentionObserver* observer) {
    OSCAR_TRY(Flatten(batch, cache));
    std::optional<HostRows> host_rows;
    if (observer != nullptr && !ops_->slots_on_host() && !observer->takes_device_rows()) observer = &host_rows.emplace(*ops_, *observer);
    batch_.wants_logits = wanted.logits != nullptr || wanted.tokens != nullptr;
    batch_.observer = observer;
    for (size_t i = 0; i < batch.size(); ++i) {
      if (const Status reserved = cache.Reserve(batch_.sequences[i], batch_.num_rows[i]); !reserved.ok()) {
        Abandon(cache, i);
        return reserved;
      }
      const int first_position = cache.length(batch_.sequences[i]);
      for (int row = 0; row < batch_.num_rows[i]; ++row) batch_.positions.push_back(first_position + row);
    }
    if (const Status run = Run(cache, wanted); !run.ok()) {
      Abandon(cache, batch.size());
      return run;
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      const Status committed = cache.Commit(batch_.sequences[i], batch_.num_rows[i]);
      if (committed.ok()) continue;
      // All rows of the step are in the cache: only the first commit can say that some of them are not finite.
      OSCAR_CHECK(i == 0);
      Abandon(cache, batch.size());
      return committed;
    }
    return {};
  }

  // Fills batch_ except the positions, and checks what the caller gave.
  Status Flatten(std::span<const StepSequence> batch, const KvCache& cache) {
    const ModelConfig& config = context_.config;
    if (cache.config().shape != config.kv) {
      return {StatusCode::kFailedPrecondition, "the KV cache was made for another model shape than " + config.architecture};
    }
    batch_.sequences.clear();
    batch_.num_rows.clear();
    batch_.tokens.clear();
    batch_.positions.clear();
    batch_.output_rows.clear();
    for (const StepSequence& step : batch) OSCAR_TRY(FlattenOne(step));
    if (batch_.tokens.empty() || batch_.tokens.size() > kMaxStepTokens) {
      return {StatusCode::kInvalidArgument, "a step of " + std::to_string(batch_.tokens.size()) + " tokens is not one of 1 to " +
                                                std::to_string(kMaxStepTokens)};
    }
    const auto num_rows = static_cast<int>(batch_.tokens.size());
    const KvShape& kv = config.kv;
    batch_.queries = PackedRows(queries_, num_rows, kv.num_query_heads, kv.head_dim);
    batch_.keys = PackedRows(keys_, num_rows, kv.num_kv_heads, kv.head_dim);
    batch_.values = PackedRows(values_, num_rows, kv.num_kv_heads, kv.head_dim);
    batch_.attention = PackedRows(attention_, num_rows, kv.num_query_heads, kv.head_dim);
    batch_.hidden = PackedRows(hidden_, num_rows, 1, config.hidden_size);
    return {};
  }

  Status FlattenOne(const StepSequence& step) {
    const std::string what = "sequence " + std::to_string(step.sequence);
    if (step.tokens.empty() || step.tokens.size() > kMaxStepTokens) {
      return {StatusCode::kInvalidArgument, what + " has a step of " + std::to_string(step.tokens.size()) +
                                                " tokens, not one of 1 to " + std::to_string(kMaxStepTokens)};
    }
    if (std::ranges::find(batch_.sequences, step.sequence) != batch_.sequences.end()) {
      return {StatusCode::kInvalidArgument, what + " occurs twice in a step"};
    }
    for (size_t i = 0; i < step.tokens.size(); ++i) {
      const int32_t token = step.tokens[i];
      if (token < 0 || token >= context_.config.vocab_size) {
        return {StatusCode::kInvalidArgument, what + ": token " + std::to_string(token) + " is not in the vocabulary of " +
                                                  std::to_string(context_.config.vocab_size)};
      }
      if (step.all_logits || i + 1 == step.tokens.size()) {
        batch_.output_rows.push_back(static_cast<int32_t>(batch_.tokens.size()));
      }
      batch_.tokens.push_back(token);
    }
    batch_.sequences.push_back(step.sequence);
    batch_.num_rows.push_back(static_cast<int>(step.tokens.size()));
    return {};
  }

  Status Run(KvCache& cache, const Wanted& wanted) {
    const auto vocab_size = static_cast<size_t>(context_.config.vocab_size);
    std::vector<float>* const logits = wanted.tokens != nullptr && ops_->slots_on_host() ? &greedy_logits_ : wanted.logits;
    if (logits != nullptr) logits->resize(batch_.output_rows.size() * vocab_size);
    if (batch_.wants_logits) ops_->Bind(Slot::kLogits, logits != nullptr ? logits->data() : nullptr);
    ops_->SetInputs(batch_.tokens, batch_.positions, batch_.output_rows);
    OSCAR_TRY(RunLayers(cache));
    if (logits == nullptr) return wanted.tokens != nullptr ? TakeTokens(wanted) : Status();
    if (const int64_t bad = FirstNonFinite(*logits); bad >= 0) {
      return NonFinite(static_cast<size_t>(bad) / vocab_size, static_cast<size_t>(bad) % vocab_size);
    }
    if (wanted.tokens == nullptr) return {};
    wanted.tokens->clear();
    for (auto row = logits->cbegin(); row != logits->cend(); row += static_cast<std::ptrdiff_t>(vocab_size)) {
      wanted.tokens->push_back(static_cast<int32_t>(std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab_size)) - row));
    }
    return {};
  }

  // The tokens of rows whose logits are on the device.
  Status TakeTokens(const Wanted& wanted) {
    std::vector<DrawnToken> drawn(batch_.output_rows.size());
    OSCAR_CHECK(wanted.draws.empty() || wanted.draws.size() == drawn.size());
    OSCAR_TRY(wanted.draws.empty() ? ops_->BestTokens(drawn) : ops_->DrawTokens(wanted.draws, drawn));
    wanted.tokens->clear();
    for (size_t row = 0; row < drawn.size(); ++row) {
      if (!drawn[row].is_finite) return NonFinite(row, static_cast<size_t>(drawn[row].token));
      wanted.tokens->push_back(drawn[row].token);
    }
    return {};
  }

  Status NonFinite(size_t output_row, size_t token) const {
    const auto row = static_cast<size_t>(batch_.output_rows[output_row]);
    return {StatusCode::kNonFinite, "logit " + std::to_string(token) + " at position " + std::to_string(batch_.positions[row]) + " is not finite"};
  }

  // A step of single tokens is one recording where the device keeps such.
  Status RunLayers(KvCache& cache) {
    batch_.is_recorded = false;
    if (!batch_.wants_logits || batch_.observer != nullptr || batch_.tokens.size() != batch_.sequences.size() || ops_->slots_on_host()) {
      return arch_.forward(context_, batch_, *ops_, cache);
    }
    OSCAR_ASSIGN_OR_RETURN(const uint64_t cache_key, cache.PrepareRecordedStep(batch_.sequences));
    const StepKey key{static_cast<int>(batch_.tokens.size()), context_.config.kv.num_layers + 1, cache_key};
    const StepRecording state = cache_key != 0 ? ops_->BeginStep(key) : StepRecording::kNone;
    if (state == StepRecording::kNone) return arch_.forward(context_, batch_, *ops_, cache);
    if (state == StepRecording::kKept) return ops_->SubmitStep(cache.NoteReplay());
    batch_.is_recorded = true;
    return ops_->SubmitStep(arch_.forward(context_, batch_, *ops_, cache));
  }

  void Abandon(KvCache& cache, size_t count) {
    for (size_t i = 0; i < count; ++i) cache.Abandon(batch_.sequences[i]);
  }

  const ModelArch& arch_;
  ModelContext context_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Ops> ops_;
  float *hidden_ = nullptr, *queries_ = nullptr, *keys_ = nullptr, *values_ = nullptr, *attention_ = nullptr;
  StepBatch batch_;  // kept, so that a step does not allocate
  std::vector<float> greedy_logits_;
};

template <class Weights>
Status PlaceWeights(std::span<const TensorRule<Weights>> rules, const Weights& weights, Ops& ops) {
  for (const TensorRule<Weights>& rule : rules) {
    if (const Weight* weight = weights.*rule.member; weight != nullptr) OSCAR_TRY(ops.Place(*weight));
  }
  return {};
}

Result<std::unique_ptr<Model>> LoadFrom(std::unique_ptr<Checkpoint> checkpoint, int num_threads, Device device,
                                        BatchRounding rounding, WeightPrecision precision) {
  const io::GgufMetadata& metadata = checkpoint->metadata();
  OSCAR_ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  const ModelArch* arch = FindArch(name);
  if (arch == nullptr) {
    return {StatusCode::kUnsupported, "architecture \"" + name.substr(0, 64) + "\" is not supported; supported are " + ArchNames()};
  }
  ModelContext context;
  OSCAR_ASSIGN_OR_RETURN(context.config, arch->read_config(metadata, name));
  OSCAR_ASSIGN_OR_RETURN(context.rope, ReadRopeParams(metadata, name, context.config));
  OSCAR_TRY(LoadWeights(arch->tensors, "", context.config, *checkpoint, context.weights));
  context.weights.layers.resize(static_cast<size_t>(context.config.kv.num_layers));
  for (size_t layer = 0; layer < context.weights.layers.size(); ++layer) {
    OSCAR_TRY(LoadWeights(arch->layer_tensors, "blk." + std::to_string(layer) + ".", context.config, *checkpoint,
                          context.weights.layers[layer]));
  }
  OSCAR_TRY(checkpoint->CheckAllUsed());
  OSCAR_TRY(CheckFactors(context.weights.rope_factors));
  if (context.weights.output == nullptr) context.weights.output = context.weights.token_embedding;

  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeOps(device, num_threads, kMaxStepTokens, rounding, precision));
  OSCAR_TRY(PlaceWeights(arch->tensors, context.weights, *ops));
  for (const LayerWeights& layer : context.weights.layers) OSCAR_TRY(PlaceWeights(arch->layer_tensors, layer, *ops));
  auto model = std::make_unique<LoadedModel>(*arch, std::move(context), std::move(checkpoint), std::move(ops));
  OSCAR_TRY(model->Allocate());
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::filesystem::path& path, int num_threads, Device device) {
  OSCAR_ASSIGN_OR_RETURN(io::GgufFile file, io::GgufFile::Open(path));
  Result<std::unique_ptr<Model>> model = Load(std::move(file), num_threads, device);
  if (!model.ok()) return model.status().WithContext(path.string());
  return model;
}

Result<std::unique_ptr<Model>> Model::Load(io::GgufFile file, int num_threads, Device device, WeightPrecision precision,
                                           BatchRounding rounding) {
  return LoadFrom(MakeGgufCheckpoint(std::move(file), precision), num_threads, device, rounding, precision);
}

Result<std::unique_ptr<Model>> Model::LoadRandom(std::string_view shape, int num_threads, Device device, BatchRounding rounding,
                                                 WeightPrecision precision) {
  OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, MakeRandomCheckpoint(shape));
  return LoadFrom(std::move(checkpoint), num_threads, device, rounding, precision);
}

}  // namespace oscar::engine
