// Runs retrieval tasks (retrieval_tasks.h) through the real engine: each item is filled up to the wanted length in tokens, rendered
// with the model's chat template, and answered greedily under every KV method.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/evaluate/retrieval_tasks.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

// One answer, for per-item records.
struct RetrievalAnswer {
  RetrievalTask task;
  int length = 0, sample = 0;
  std::string method;
  int prompt_tokens = 0;
  std::vector<std::string> expected;
  std::string answer;
  double score = 0;
};

struct RetrievalRequest {
  std::vector<KvSetup> methods;      // at least one; all answer the same prompts
  std::vector<RetrievalTask> tasks;
  std::vector<int> lengths;          // tokens, prompt and answer together
  int samples = 5;                   // items per task and length
  uint64_t seed = 0;
  RetrievalSources sources;
  std::function<Status(const RetrievalAnswer&)> on_answer;  // may be empty
  RunControl control;
};

struct RetrievalCell {
  RetrievalTask task;
  int length = 0;
  std::string method;
  double score = 0;            // mean over the samples, 0 to 1
  double prompt_tokens = 0;    // mean
  double bits_per_element = 0; // stored at this length, windows and metadata included
};

// Task before length before method. kInvalidArgument naming task and length when not even the question fits; the errors of the
// tasks, the model and on_answer.
Result<std::vector<RetrievalCell>> RunRetrieval(Engine& engine, const RetrievalRequest& request);

}  // namespace oscar::engine
