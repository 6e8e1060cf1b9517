// `oscar bench attend` and `demote`: what the KV cache itself costs, for the shape of a model, without the model. All layers, so that the pages of a long context come
// from memory as in a real step; rows are random.
#pragma once

#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

struct KernelRequest {
  std::vector<KvSetup> methods;  // at least one; interleaved repeat by repeat
  std::vector<int> contexts;     // tokens in the cache, ascending, >= 1
  int repeats = 15;
  RunControl control;
};

struct KernelCell {
  std::string method;
  int context = 0;
  std::vector<double> seconds;  // one per repeat, sorted
  double bytes = 0;             // pages read (attend), or rows written, read back and encoded (demote)
  double multiply_adds = 0;     // of attention: two per (query head, token, channel); 0 for demote
  int64_t rows = 0;             // of K and V, appended (demote); 0 for attend
};

// Attention of one decode step in all layers. Errors as MeasureDemotion.
Result<std::vector<KernelCell>> MeasureAttention(Engine& engine, const KernelRequest& request);

// 64 tokens appended in all layers, and with them the page that leaves the window demoted where the method encodes. kInvalidArgument for contexts that are not positive and
// ascending or beyond what the model was trained for, for no method and for repeats below 1.
Result<std::vector<KernelCell>> MeasureDemotion(Engine& engine, const KernelRequest& request);

}  // namespace oscar::engine
