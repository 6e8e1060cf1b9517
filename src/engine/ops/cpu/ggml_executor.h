// GgmlExecutor: ggml's threads as an Executor. A task runs as a graph of one custom node on the threads that also multiply
// the weights, so that two sets of spinning threads never compete for the cores (architecture.md 7, facts 8 and 9).
#pragma once

#include <ggml-cpu.h>
#include <ggml.h>

#include "oscar/executor.h"

namespace oscar::engine {

class GgmlExecutor final : public Executor {
 public:
  // Precondition: 1 <= num_threads <= GGML_MAX_N_THREADS.
  explicit GgmlExecutor(int num_threads);
  ~GgmlExecutor() override;
  GgmlExecutor(const GgmlExecutor&) = delete;
  GgmlExecutor& operator=(const GgmlExecutor&) = delete;

  int num_threads() const override { return num_threads_; }
  void Run(Task task, void* state) override;
  ggml_threadpool* threadpool() const { return threadpool_; }

 private:
  static void RunNode(ggml_tensor* node, int thread, int num_threads, void* self);

  int num_threads_;
  ggml_threadpool* threadpool_ = nullptr;
  ggml_context* context_ = nullptr;  // holds the one-node graph
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_ = {};
  Task task_ = nullptr;
  void* state_ = nullptr;
};

}  // namespace oscar::engine
