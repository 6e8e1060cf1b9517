#include "src/engine/ops/cpu/ggml_executor.h"

#include "src/base/check.h"

namespace oscar::engine {

GgmlExecutor::GgmlExecutor(int num_threads) : num_threads_(num_threads) {
  OSCAR_CHECK(num_threads >= 1 && num_threads <= GGML_MAX_N_THREADS);
  ggml_threadpool_params params = ggml_threadpool_params_default(num_threads);
  threadpool_ = ggml_threadpool_new(&params);
  OSCAR_CHECK(threadpool_ != nullptr);

  constexpr size_t kNodes = 1;
  const size_t bytes = 2 * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodes, /*grads=*/false);
  context_ = ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true});
  OSCAR_CHECK(context_ != nullptr);
  ggml_tensor* node = ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, /*args=*/nullptr, /*n_args=*/0, RunNode,
                                     GGML_N_TASKS_MAX, this);
  graph_ = ggml_new_graph_custom(context_, kNodes, /*grads=*/false);
  ggml_build_forward_expand(graph_, node);
  plan_ = ggml_graph_plan(graph_, num_threads, threadpool_);
  OSCAR_CHECK(plan_.n_threads == num_threads && plan_.work_size == 0);
}

GgmlExecutor::~GgmlExecutor() {
  ggml_threadpool_free(threadpool_);
  ggml_free(context_);
}

void GgmlExecutor::RunNode(ggml_tensor*, int thread, int num_threads, void* self) {
  const auto* executor = static_cast<const GgmlExecutor*>(self);
  executor->task_(executor->state_, thread, num_threads);
}

void GgmlExecutor::Run(Task task, void* state) {
  OSCAR_CHECK_MSG(task_ == nullptr, "GgmlExecutor::Run is not re-entrant");
  task_ = task;
  state_ = state;
  OSCAR_CHECK(ggml_graph_compute(graph_, &plan_) == GGML_STATUS_SUCCESS);
  task_ = nullptr;
}

}  // namespace oscar::engine
