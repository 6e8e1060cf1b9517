// ModelArch: what an architecture's .cc provides, as one constant: names, config, tensors, forward pass. registry.cc lists them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/models/model.h"
#include "src/engine/ops/ops.h"
#include "src/engine/weights/weight.h"
#include "src/io/gguf.h"

namespace oscar::engine {

// Weights of one layer. A pointer is null where the architecture or the file has no such tensor.
struct LayerWeights {
  const Weight* attention_norm = nullptr;                                          // [hidden]
  const Weight *query = nullptr, *key = nullptr, *value = nullptr;                 // [Hq d or Hkv d, hidden]
  const Weight *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr;  // [Hq d or Hkv d]
  const Weight *query_norm = nullptr, *key_norm = nullptr;                         // [d], per head before RoPE
  const Weight *attention_output = nullptr, *attention_output_bias = nullptr;      // [hidden, Hq d], [hidden]
  const Weight* ffn_norm = nullptr;                                                // [hidden]
  const Weight *ffn_gate = nullptr, *ffn_up = nullptr, *ffn_down = nullptr;        // [ffn, hidden] twice, [hidden, ffn]
  const Weight* router = nullptr;                                                  // [experts, hidden]
  const Weight *expert_gate = nullptr, *expert_up = nullptr, *expert_down = nullptr;  // like those of ffn, one behind the other
};

struct ModelWeights {
  const Weight* token_embedding = nullptr;  // [vocab, hidden]
  const Weight* output_norm = nullptr;      // [hidden]
  const Weight* output = nullptr;           // [vocab, hidden]; token_embedding when the file ties them
  const Weight* rope_factors = nullptr;     // [rope_dims / 2]: llama3's frequency factors
  std::vector<LayerWeights> layers;
};

// Sizes by the name that the config gives them; kNone ends the list.
enum class Extent : uint8_t { kNone, kHidden, kFfn, kVocab, kQueryWidth, kKvWidth, kHeadDim, kRopePairs, kExperts };
enum class Presence : uint8_t { kRequired, kOptional };

// Where a weight comes from: its name in the checkpoint ("blk.<layer>." in front of a layer's) and its dims, dims[0] first.
template <class Weights>
struct TensorRule {
  const Weight* Weights::*member;
  std::string_view name;
  std::array<Extent, 3> dims;
  Presence presence = Presence::kRequired;
};

struct ModelContext {
  ModelConfig config;
  RopeParams rope;
  ModelWeights weights;
};

// One step over some sequences, flattened: row r of the step is tokens[r] at positions[r]; the rows of sequence i follow those
// of sequence i - 1.
struct StepBatch {
  std::vector<SequenceId> sequences;
  std::vector<int> num_rows;          // per sequence
  std::vector<int32_t> tokens, positions;
  std::vector<int32_t> output_rows;   // rows whose logits are wanted, ascending
  bool wants_logits = false;
  RowsView<float> queries, keys, values, attention;  // memory of the slots, [rows, heads, d]
  RowsView<float> hidden;                            // [rows, 1, hidden]
  AttentionObserver* observer = nullptr;
  bool is_recorded = false;                          // AttendRecorded in place of Append and Attend
};

struct ModelArch {
  std::span<const std::string_view> names;  // values of general.architecture
  // kNotFound, kCorruptData or kUnsupported naming the key.
  Result<ModelConfig> (*read_config)(const io::GgufMetadata& metadata, std::string_view name);
  std::span<const TensorRule<ModelWeights>> tensors;
  std::span<const TensorRule<LayerWeights>> layer_tensors;
  // Runs the step with rows already reserved in `cache`: appends and attends, but does not commit. Logits go to Slot::kLogits.
  Status (*forward)(const ModelContext& model, const StepBatch& batch, Ops& ops, KvCache& cache);
};

// nullptr when no architecture has this name.
const ModelArch* FindArch(std::string_view name);
// All names, comma-separated, for messages.
std::string ArchNames();

}  // namespace oscar::engine
