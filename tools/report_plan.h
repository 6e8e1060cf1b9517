// How `oscar eval report` cuts its budget into steps.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/options.h"
#include "tools/report_steps.h"

namespace oscar::tools {

struct ReportBudget {
  double seconds = 0;
  double tokens_per_second = 0;  // of the exact cache
  int trained_tokens = 0;
  int head_dim = 0;
};

struct ReportInputs {
  engine::EngineOptions engine;
  struct Method {
    std::string name;
    bool needs_fit = false;      // calibrated, and no profile beside the model
  };
  std::vector<Method> methods;
  std::string text, code;        // paths; empty: the built-in text; no step of its own
  std::filesystem::path work;
};

// Calibrations that are missing, then KL on prose and code, codes hidden in prose, error chain, basis, ablation. A budget too small for
// one window of 2,048 tokens gets shorter ones, down to 512. kInvalidArgument without a method.
Result<std::vector<ReportStep>> PlanReport(const ReportInputs& inputs, const ReportBudget& budget);

}  // namespace oscar::tools
