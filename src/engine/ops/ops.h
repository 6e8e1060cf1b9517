// Ops: the verbs of a forward pass. A verb records; Submit runs what was recorded. On the CPU a recording is a ggml graph and
// is kept, so that the next step of the same shape only submits it again (architecture.md 7, fact 8).
//
// A step is num_tokens rows. Rows that outlive a recording (the residual stream, Q, K, V, attention output, logits) live in
// slots, memory of the caller; everything else is scratch that only exists inside one recording.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "oscar/calibrate.h"
#include "oscar/executor.h"
#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/sample/token_draw.h"
#include "src/engine/weights/checkpoint.h"
#include "src/engine/weights/weight.h"

namespace oscar::engine {

// Rotary embedding of one model. Pair i of a head turns by position * base^(-2 i / dims) / factor_i, with the factors of
// Ops::Rope, times frequency_scale; YaRN (arXiv 2309.00071) mixes scaled and unscaled frequencies between beta_fast and
// beta_slow, rotations per original context.
struct RopeParams {
  int dims = 0;                // rotary dimensions, even
  bool neox = false;           // pairs (i, i + dims/2) instead of (2i, 2i + 1)
  float base = 10000;
  float frequency_scale = 1;   // 1 / scaling factor
  float yarn_mix = 0;          // 1: YaRN; 0: plain or linear scaling
  float magnitude = 1;         // factor on cos and sin; with YaRN ggml multiplies 1 + 0.1 ln(1 / frequency_scale) to it
  float beta_fast = 32, beta_slow = 1;
  int original_context = 0;    // tokens; used by YaRN only
  bool operator==(const RopeParams&) const = default;
};

// f32 rows [rows, width] inside a recording. Opaque: a node of the implementation.
struct Tensor {
  ggml_tensor* node = nullptr;
};

// A mixture of experts. Of each row the num_used experts of the largest probabilities are asked, the lower one at equals.
struct ExpertWeights {
  const Weight* router = nullptr;                                // [experts, hidden]
  const Weight *gate = nullptr, *up = nullptr, *down = nullptr;  // [experts, ffn, hidden] twice, [experts, hidden, ffn]
  int num_used = 0;
};

// Rows that outlive a recording, f32 without gaps.
enum class Slot : uint8_t { kHidden, kQuery, kKey, kValue, kAttention, kLogits };
inline constexpr int kNumSlots = 6;

// The token of a row of logits. Not finite: `token` is the first whose logit is NaN or infinite.
struct DrawnToken {
  int32_t token = 0;
  bool is_finite = true;
};

// What a recording depends on besides the model. Equal keys mean equal recordings.
struct RecordingKey {
  int segment = 0;          // the caller's number for this part of the pass, from 0 without gaps
  int num_tokens = 0;       // rows of the step
  int num_output_rows = 0;  // rows of the step that GatherOutputRows keeps
};

// A whole decode step, the cache's part included.
struct StepKey {
  int num_tokens = 0;      // rows, each with logits
  int num_segments = 0;    // recordings of RecordingKey that make up the step
  uint64_t cache_key = 0;  // KvCache::PrepareRecordedStep
  bool operator==(const StepKey&) const = default;
};
enum class StepRecording : uint8_t {
  kNone,  // not recorded: submit segment by segment
  kNew,   // recording: segments and cache launches until SubmitStep only record
  kKept,  // recorded before: only SubmitStep
};

class Ops {
 public:
  virtual ~Ops() = default;
  // The threads of Submit, for others to use between two Submits.
  virtual Executor& executor() = 0;

  // Makes a weight ready for the verbs, once and before any that takes it; it must stay in place. kUnsupported for one that
  // the device cannot take, kResourceExhausted without memory.
  virtual Status Place(const Weight& weight) = 0;
  // Memory for slots where the verbs run; it lives as long as this. kResourceExhausted.
  virtual Result<float*> AllocateSlots(std::size_t num_floats) = 0;
  // Bytes that a device with memory of its own has left, weights and slots in place; none where caches take the host's.
  virtual std::optional<uint64_t> free_device_memory() const { return std::nullopt; }
  // Whether the caller may read slots (kLogits may always be read).
  virtual bool slots_on_host() const = 0;
  // A cache that takes its rows from slots and writes to them. Errors as KvCache::Create.
  virtual Result<std::unique_ptr<KvCache>> NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) = 0;
  // Moments of rows in slots. Errors as CheckOscarFit and CheckBalancedFit; kUnsupported for a shape that the device cannot take.
  virtual Result<MomentAccumulator> NewMoments(const KvShape& shape, const OscarFitOptions& options) = 0;
  virtual Result<BalancedMoments> NewBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens) = 0;
  // Values of slots into host memory, after all that was submitted.
  virtual Status ReadSlots(const float* values, std::span<float> out) = 0;

  // Memory of a slot for all following Submits; must hold the rows that are loaded from or stored to it.
  virtual void Bind(Slot slot, float* data) = 0;
  // Inputs of the following Submits: one id and position per row, and the rows that GatherOutputRows keeps, ascending.
  // Precondition: not more than max_tokens of MakeCpuOps.
  virtual void SetInputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                         std::span<const int32_t> output_rows) = 0;

  // Where slots are not on the host and kLogits is bound to null: logits stay on the device, and after Submit one of these finds the
  // token of each output row, the best (at equals the lowest) or the one drawn. Once per Submit: logits are changed in place.
  virtual Status BestTokens(std::span<DrawnToken> /*tokens*/) { return {StatusCode::kUnsupported, "logits are on the host"}; }
  virtual Status DrawTokens(std::span<const TokenDraw> /*draws*/, std::span<DrawnToken> /*tokens*/) {
    return {StatusCode::kUnsupported, "logits are on the host"};
  }

  // Starts a recording. False: one with this key is kept; record nothing, only Submit.
  virtual bool Begin(const RecordingKey& key) = 0;
  // Runs the recording begun last. kInternal when the backend fails.
  virtual Status Submit() = 0;

  // Steps as one recording, where the device keeps such; a step of this shape must have run before.
  virtual StepRecording BeginStep(const StepKey& /*key*/) { return StepRecording::kNone; }
  // In a recorded step, after a Submit: the norm and the RoPE that Slot::kQuery and kKey still need, where the device leaves them to
  // the cache; else nothing.
  virtual HeadTurn TakeTurn() { return {}; }
  // After kNew or kKept: runs the step. `recorded`: how recording went; an error drops it and is returned.
  virtual Status SubmitStep(Status recorded) { return recorded; }

  // Verbs, between Begin and Submit. Shapes that do not fit are a fault of ours and abort.
  virtual Tensor Load(Slot slot, int width) = 0;                        // [num_tokens, width]
  virtual void Store(Tensor tensor, Slot slot) = 0;                     // the result of a verb, written to the slot directly
  virtual Tensor Embed(const Weight& table) = 0;                        // rows of [vocab, width] by token id
  virtual Tensor MatMul(const Weight& matrix, Tensor x) = 0;            // x W^T with W [out, in]
  virtual Tensor AddBias(Tensor x, const Weight& bias) = 0;             // x + bias [width]
  virtual Tensor Add(Tensor a, Tensor b) = 0;
  // Normalises each group of gain.dims[0] elements by its root mean square (sqrt(mean(x^2) + epsilon)), times gain: a whole
  // row, or each head of a row.
  virtual Tensor RmsNorm(Tensor x, const Weight& gain, float epsilon) = 0;
  // factors: f32 [dims / 2] dividing the frequencies (llama3), or nullptr.
  virtual Tensor Rope(Tensor x, int head_dim, const RopeParams& params, const Weight* factors) = 0;
  virtual Tensor SwiGlu(Tensor gate, Tensor up) = 0;                    // silu(gate) * up
  // The sum of p_e down_e(silu(gate_e x) * up_e x) over the experts e of a row; p is softmax(router x), divided by its sum over them.
  virtual Tensor Experts(const ExpertWeights& weights, Tensor x) = 0;
  virtual Tensor GatherOutputRows(Tensor x) = 0;                        // [num_output_rows, width]
};

// Whether a row of a step may have other bits beside other rows. kInvariant: it may not, whatever shares the step with it; products
// then give up what is gained by taking several rows at once.
enum class BatchRounding : uint8_t { kFree, kInvariant };

// Ops on ggml's CPU code with its own threads. kInvalidArgument unless 1 <= num_threads <= 512.
Result<std::unique_ptr<Ops>> MakeCpuOps(int num_threads, int max_tokens, BatchRounding rounding = BatchRounding::kFree);
// Ops on the first CUDA device, in builds with OSCAR_CUDA; num_threads are for what is left to the CPU. kUnsupported without a
// device of compute capability 9.0.
// kFp8: matrices, the embedding too, are rounded to E4M3 with a scale per row, and so are the rows that they multiply; else they are BF16.
Result<std::unique_ptr<Ops>> MakeCudaOps(int num_threads, int max_tokens, BatchRounding rounding = BatchRounding::kFree,
                                         WeightPrecision precision = WeightPrecision::kStored);

enum class Device : uint8_t { kCpu, kCuda };
// kUnsupported for kCuda in a build without OSCAR_CUDA, for kFp8 elsewhere, and for kFp8 with kInvariant.
Result<std::unique_ptr<Ops>> MakeOps(Device device, int num_threads, int max_tokens, BatchRounding rounding = BatchRounding::kFree,
                                     WeightPrecision precision = WeightPrecision::kStored);

}  // namespace oscar::engine
