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
  int kl_window = 0;             // tokens per window of KL and calibration; 0: what the budget has, up to 2,048
};

struct ReportInputs {
  engine::EngineOptions engine;
  struct Method {
    std::string name;            // METHOD or METHOD=PROFILE
    bool needs_fit = false;      // calibrated, and no profile named or beside the model
  };
  std::vector<Method> methods;
  std::string text, code;        // paths; empty: the built-in text; no step of its own
  std::string suite, data, python;  // of `eval tasks`; no suite: no such step
  std::filesystem::path work;
};

// Calibrations that are missing, then KL on prose and code, codes hidden in prose, RULER's tasks, a task suite, error chain, basis, ablation. A budget
// too small for one window of 2,048 tokens gets shorter ones, down to 512; a `kl_window` is kept whatever it costs. kInvalidArgument without a method.
Result<std::vector<ReportStep>> PlanReport(const ReportInputs& inputs, const ReportBudget& budget);

}  // namespace oscar::tools
