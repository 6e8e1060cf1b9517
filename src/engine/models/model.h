// Model: one architecture with its weights, run over a KvCache. An architecture is one .cc and one line in registry.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/calibrate.h"
#include "oscar/executor.h"
#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "oscar/types.h"
#include "src/engine/ops/ops.h"
#include "src/engine/weights/checkpoint.h"
#include "src/io/gguf.h"

namespace oscar::engine {

// Shape and constants of a model, from its metadata.
struct ModelConfig {
  std::string architecture;    // "llama", "qwen2", "qwen3", "qwen3moe"
  std::string name;            // general.name
  KvShape kv;                  // layers, heads, head_dim
  int hidden_size = 0;
  int ffn_size = 0;            // of one expert where there are some
  int num_experts = 0, num_used_experts = 0;  // 0: none
  int vocab_size = 0;
  int max_context = 0;         // tokens the model was trained for (after RoPE scaling)
  float norm_epsilon = 0;
  float rope_base = 10000;
  bool rope_neox = false;      // rotate halves (true) or adjacent pairs (false)
  int rope_dims = 0;           // rotary dimensions; <= head_dim
  float attention_scale = 0;   // 1/sqrt(head_dim) unless the file says otherwise

  // Of what a token passes.
  int step_ffn_size() const { return num_experts > 0 ? ffn_size * num_used_experts : ffn_size; }
};

// Some tokens of one sequence; their positions are first_position, first_position + 1, ... = the cache's length.
struct StepSequence {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;
  bool all_logits = false;     // logits of every token instead of the last one only
};

// Sees what passes through a layer, in this order. For calibration and evaluation; an error ends the step.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // Whether rows may be where the model computes, as Model::NewMoments takes them; else they are copied to this process.
  virtual bool takes_device_rows() const { return false; }
  // Q, K and V as attention sees them: after QK norm and RoPE.
  virtual Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys,
                         RowsView<const float> values) = 0;
  // What attention made of them, before the output projection: [rows, Hq, d].
  virtual Status ObserveAttention(int /*layer*/, RowsView<const float> /*attention*/) { return {}; }
  // The residual stream behind the layer, [rows, 1, hidden]; behind the last one only rows whose logits are wanted, and none when no
  // logits are.
  virtual Status ObserveHidden(int /*layer*/, RowsView<const float> /*hidden*/) { return {}; }
};

class Model {
 public:
  // Reads config, tokenizer-independent. `path` is mapped and stays so. Errors name the file and the tensor or key.
  // num_threads >= 1: size of the one set of compute threads. On a CUDA device the weights are widened to BF16 and copied.
  static Result<std::unique_ptr<Model>> Load(const std::filesystem::path& path, int num_threads, Device device = Device::kCpu);
  // The same of a parsed file, for a caller that reads more of it; errors name tensor or key only.
  static Result<std::unique_ptr<Model>> Load(io::GgufFile file, int num_threads, Device device = Device::kCpu,
                                             WeightPrecision precision = WeightPrecision::kStored,
                                             BatchRounding rounding = BatchRounding::kFree);
  // A published shape with random weights (MakeRandomCheckpoint), on a CUDA device.
  static Result<std::unique_ptr<Model>> LoadRandom(std::string_view shape, int num_threads, Device device,
                                                   BatchRounding rounding = BatchRounding::kFree,
                                                   WeightPrecision precision = WeightPrecision::kStored);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const io::GgufMetadata& metadata() const = 0;
  // ggml's threads, for whatever else is computed on the CPU.
  virtual Executor& executor() = 0;
  // A cache on the device of the model, for Forward: it must be destroyed before the model. Errors as KvCache::Create.
  virtual Result<std::unique_ptr<KvCache>> NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) = 0;
  // Angle per rotary pair in radians per position, scaling applied: [rope_dims / 2]. For rotating means.
  virtual std::vector<float> rope_angles() const = 0;
  // How keys turn: rope_angles and the pairing of the config.
  RotaryEmbedding rotary() const { return {rope_angles(), config().rope_neox}; }
  // Rows [first_row, first_row + num_rows) of the attention output projection of a layer, widened to f32:
  // [num_rows, num_query_heads * head_dim], row r for hidden channel r. Precondition: layer and rows exist.
  virtual Result<std::vector<float>> AttentionOutputRows(int layer, int first_row, int num_rows) const = 0;
  virtual uint64_t weight_bytes() const = 0;
  // Those that a step of one token reads: without an embedding table that is not the output matrix, too.
  virtual uint64_t step_weight_bytes() const = 0;
  // Bytes that a device with memory of its own has left; none where caches take the host's.
  virtual std::optional<uint64_t> free_device_memory() const { return std::nullopt; }
  // Moments that take the rows of an observer with takes_device_rows; they must be destroyed before the model. Errors as
  // CheckOscarFit and CheckBalancedFit; kUnsupported for a shape that the device cannot take.
  virtual Result<MomentAccumulator> NewMoments(const OscarFitOptions& options) = 0;
  virtual Result<BalancedMoments> NewBalancedMoments(int64_t expected_tokens) = 0;

  // Runs the batch: reserves, appends and commits in `cache`. On an error nothing was committed for any sequence. `logits`
  // gets one row [vocab_size] per wanted token, in batch order; nullptr: no logits are computed. Largest batch:
  // kMaxStepTokens tokens. kInvalidArgument for an empty or too large step, a token outside the vocabulary, or a sequence
  // given twice; kFailedPrecondition for a cache of another shape; kNonFinite naming the position of a logit; else as KvCache.
  virtual Status Forward(std::span<const StepSequence> batch, KvCache& cache, std::vector<float>* logits,
                         AttentionObserver* observer = nullptr) = 0;
  // The same with the token of the largest logit in place of each row of logits, the lowest at equals; where the model computes on a
  // device, logits do not leave it.
  virtual Status ForwardGreedy(std::span<const StepSequence> batch, KvCache& cache, std::vector<int32_t>* tokens) = 0;
  // Whether the model computes where tokens are drawn without logits on the host; then ForwardDrawn draws that of each row, as
  // Sampler::Sample would. draws: one for each row that Forward would have logits of.
  virtual bool draws_tokens() const { return false; }
  virtual Status ForwardDrawn(std::span<const StepSequence> /*batch*/, KvCache& /*cache*/, std::span<const TokenDraw> /*draws*/,
                              std::vector<int32_t>* /*tokens*/) {
    return {StatusCode::kUnsupported, "this model draws no tokens"};
  }
  // For measurements of speed: lengthens a sequence by num_tokens tokens that were not computed, in steps of up to
  // cache.config().max_step_tokens. Their K and V in all layers are rows of the steps before, of which one had kMaxStepTokens tokens.
  virtual Status FillCache(SequenceId sequence, int num_tokens, KvCache& cache) = 0;
};

inline constexpr int kMaxStepTokens = 512;

}  // namespace oscar::engine
