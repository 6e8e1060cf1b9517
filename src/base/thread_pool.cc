#include "src/base/thread_pool.h"

#include "src/base/check.h"

namespace oscar::base {

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  OSCAR_CHECK(num_threads >= 1);
  threads_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
}

void ThreadPool::Run(Task task, void* state) {
  if (num_threads_ > 1) {
    {
      std::lock_guard lock(mutex_);
      OSCAR_CHECK_MSG(num_running_ == 0, "ThreadPool::Run is not re-entrant");
      task_ = task;
      state_ = state;
      num_running_ = num_threads_ - 1;
      ++generation_;
    }
    start_.notify_all();
  }
  task(state, 0, num_threads_);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return num_running_ == 0; });
}

void ThreadPool::Work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    Task task;
    void* state;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      task = task_;
      state = state_;
    }
    task(state, thread, num_threads_);
    {
      std::lock_guard lock(mutex_);
      --num_running_;
    }
    done_.notify_one();
  }
}

}  // namespace oscar::base
