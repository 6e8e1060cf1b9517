// `oscar eval ablation`: one choice of a method changed at a time, and what that does to the KL (method.md 9.5 and 10). All settings share
// one exact pass; those that need another fit share the passes of one calibration.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/evaluate/kl_divergence.h"
#include "src/engine/evaluate/windows.h"
#include "src/engine/runtime/text_source.h"

namespace oscar::engine {

// "clip-k", "clip-v", "scope", "k-metric", "v-metric", "compose" (of int2:oscar), "effort" (of methods with error feedback), "windows".
std::span<const std::string_view> AblationSweeps();

struct AblationRequest {
  std::string method = "int2:oscar";
  std::string profile;                       // of another calibrated method; empty: the one beside the model
  std::vector<std::string> sweeps;           // empty: all that the method has
  TextSource calibration_text;               // int2:oscar is fitted in the run
  int64_t calibration_tokens = 8192;
  int calibration_window = 2048;
  RunControl calibration_control, control;   // of the fit, and of the passes that are scored; each counts tokens to its end
};

struct AblationSetting {
  std::string sweep, value;  // "clip-k", "0.92"; the unchanged method is "base", "-"
  KvSetup setup;
};

// The base and every setting of the sweeps. kInvalidArgument for a sweep that does not exist or that the method does not have.
Result<std::vector<AblationSetting>> MakeAblation(Engine& engine, const AblationRequest& request);

struct AblationScore {
  std::string sweep, value;
  MethodScore score;
};

struct AblationReport {
  std::string model, method;
  double exact_perplexity = 0;
  int64_t num_scored = 0;
  std::vector<AblationScore> scores;  // as the settings
};
Result<AblationReport> RunAblation(Engine& engine, const AblationRequest& request, std::span<const int32_t> tokens, const WindowPlan& plan);

}  // namespace oscar::engine
