// Runs a task suite: every item and sample through the real engine under each KV method, graded as it comes, each answer written
// to a record file, from which an interrupted run goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/evaluate/task_suite.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"
#include "src/engine/sample/sampling_params.h"

namespace oscar::engine {

struct TaskRunRequest {
  std::vector<KvSetup> methods;      // at least one
  TaskSuite suite = TaskSuite::kHumanEval;
  std::vector<TaskItem> items;
  int samples = 1;                   // answers per item; more than one needs a temperature
  SamplingParams sampling;           // the seed of sample i is sampling.seed + i
  int max_tokens = 1024;             // longest answer
  std::string template_variables;    // JSON object for the chat template ({"enable_thinking": false}), or empty
  std::string python = "python3";    // runs code and compares expressions
  std::filesystem::path records;     // JSON lines; what is there already is not run again. Empty: none are written
  RunControl control;                // in answers
};

struct TaskScore {
  std::string method;
  int answers = 0;
  double pass_rate = 0;        // pass@1: mean over items and samples
  double deviation = 0;        // of the pass rates of the samples (seeds), n - 1; 0 for one
  double truncated = 0;        // share of answers that reached max_tokens or the end of the context
  double answer_tokens = 0;    // mean
};

// Method after method, in their order. kInvalidArgument when more than one sample is asked for at temperature 0;
// kFailedPrecondition when the records are of another model, suite or setting (both sides named); the errors of the engine and
// of grading.
Result<std::vector<TaskScore>> RunTasks(Engine& engine, const TaskRunRequest& request);

}  // namespace oscar::engine
