// `oscar eval kl` and `oscar eval ppl`: how far a KV method's next-token distributions are from the exact cache's, per token,
// and what perplexity it gives. Teacher forcing; exact = the bf16 cache.
#pragma once

#include <string>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/result.h"
#include "src/engine/evaluate/token_scores.h"
#include "src/engine/evaluate/windows.h"

namespace oscar::engine {

// A part of the scored positions of all windows.
struct BucketScore {
  int first_position = 0, last_position = 0;  // of the tokens whose logits are scored, in their window
  double perplexity = 0;
  double kl_mean = 0;                         // set with MethodScore::compared
};

struct MethodScore {
  std::string method;
  double perplexity = 0;
  double bits_per_element = 0;  // stored, windows and metadata included, mean over the scored positions (method.md 4)
  // Against the exact cache; unset (compared = false) in `ppl` runs.
  bool compared = false;
  Summary kl;                   // nats per token
  double top1_agreement = 0;    // share of positions with the same most likely token
  std::vector<BucketScore> buckets;
};

struct ScoreReport {
  std::string model, text;
  int window = 0, scored = 0, num_windows = 0;
  int64_t num_scored = 0;       // tokens scored per method
  double exact_perplexity = 0;  // set in `kl` runs
  std::vector<BucketScore> exact_buckets;
  std::vector<MethodScore> methods;
};

// methods: at least one. `compare`: also run the exact cache and fill KL and agreement.
Result<ScoreReport> ScoreMethods(Engine& engine, const std::vector<KvSetup>& methods, std::span<const int32_t> tokens,
                                 const WindowPlan& plan, bool compare, const RunControl& control);

}  // namespace oscar::engine
