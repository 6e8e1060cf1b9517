// One window of a text through one cache, with what passed through each layer kept for comparison: rows as the cache stores
// them, and queries, attention outputs, the residual stream and logits of the last positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/models/model.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

// Positions of a pass: tokens [0, positions) run, the last `sampled` of them are looked at.
struct PassExtent {
  int positions = 0, sampled = 0;
  int first_sampled() const { return positions - sampled; }
};

struct LayerCapture {
  std::vector<float> keys, values;         // bf16 numbers [positions, Hkv, d], as given to the cache
  std::vector<float> queries, attention;   // [sampled, Hq, d]; attention before the output projection
  std::vector<float> hidden;               // [sampled, hidden], behind the layer
  // Where the cache has encoded rows: what it reads, [encoded_end - encoded_begin, Hkv, d].
  int encoded_begin = 0, encoded_end = 0;
  std::vector<float> encoded_keys, encoded_values;
};

struct CapturedPass {
  PassExtent extent;
  std::vector<LayerCapture> layers;
  std::vector<float> logits;  // [sampled, vocab]
};

// Runs tokens [0, extent.positions) as one sequence and reads back its encoded pages. Precondition: 1 <= sampled < positions <=
// tokens.size(). Errors of the model and the cache; kCancelled.
Result<CapturedPass> CapturePass(Model& model, KvCache& cache, std::span<const int32_t> tokens, const PassExtent& extent,
                                 const RunControl& control);

}  // namespace oscar::engine
