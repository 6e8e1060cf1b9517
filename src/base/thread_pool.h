// ThreadPool: the default Executor. The calling thread is thread 0; the others sleep between tasks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "oscar/executor.h"

namespace oscar::base {

class ThreadPool : public Executor {
 public:
  // num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool() override;
  int num_threads() const override { return num_threads_; }
  void Run(Task task, void* state) override;

 private:
  void Work(int thread);

  const int num_threads_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  Task task_ = nullptr;
  void* state_ = nullptr;
  uint64_t generation_ = 0;
  int num_running_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace oscar::base
