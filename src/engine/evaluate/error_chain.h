// `oscar eval error-chain`: how the error of stored rows goes on through a model, layer by layer: K and V as the cache reads them,
// attention scores and probabilities, the output of the attention block, the residual stream, and the logits (method.md 10).
// Everything runs through the real model and cache; the exact cache is the reference, and all methods share one exact pass.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/evaluate/captured_pass.h"
#include "src/engine/evaluate/windows.h"

namespace oscar::engine {

// sum of squared differences over the sum of squares: a relative mean squared error.
struct RelativeError {
  double error = 0, norm = 0;
  void Add(double difference, double exact) {
    error += difference * difference;
    norm += exact * exact;
  }
  void Add(const RelativeError& other) {
    error += other.error;
    norm += other.norm;
  }
  double value() const { return norm > 0 ? error / norm : 0; }
};

// One layer, over all windows. Rows are the encoded ones; what is not "codec" is compared with the pass over the exact cache, and so
// carries what the layers before have done to this one's input.
struct LayerErrors {
  RelativeError key_codec, value_codec;  // what the cache reads against what it was given
  RelativeError key, value;              // what the cache reads against the exact pass
  RelativeError score;                   // q . k / sqrt(d) over the tokens that a query sees, less the mean over them
  double attention_kl = 0;               // sum of KL(exact || method) of attention probabilities, nats; `num_attention` of them
  int64_t num_attention = 0;
  RelativeError output;                  // of the attention block, behind the output projection
  RelativeError hidden;                  // of the residual stream behind the layer
  double mean_attention_kl() const { return num_attention > 0 ? attention_kl / static_cast<double>(num_attention) : 0; }
};

struct ErrorChain {
  std::string method;
  double bits_per_element = 0;  // stored, mean over the sampled positions
  std::vector<LayerErrors> layers;
  RelativeError logits;         // less their mean
  double kl = 0;                // nats per token
  double top1_agreement = 0;
};

// One pass against the exact one of the same window, added to `chain`, whose `layers` are as many as the model's; kl and
// top1_agreement become sums over positions. `cache`: the one that the method's pass went through.
Status AddErrors(Model& model, const CapturedPass& exact, const CapturedPass& method, const KvCache& cache, ErrorChain& chain);

struct ErrorChainReport {
  std::string model, text;
  int window = 0, sampled = 0, num_windows = 0;
  std::vector<ErrorChain> chains;
};

// plan.scored positions at the end of each window are sampled. kInvalidArgument when no page is encoded for the first of them.
Result<ErrorChainReport> RunErrorChain(Engine& engine, std::span<const KvSetup> methods, std::span<const int32_t> tokens,
                                       const WindowPlan& plan, const RunControl& control);

}  // namespace oscar::engine
