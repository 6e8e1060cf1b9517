// Executor: the compute threads, given from outside so that a host program and liboscar never compete for cores.
#pragma once

namespace oscar {

class Executor {
 public:
  // Called once per thread with 0 <= thread < num_threads. Must not throw.
  using Task = void (*)(void* state, int thread, int num_threads);
  virtual ~Executor() = default;
  virtual int num_threads() const = 0;
  // Calls task(state, thread, num_threads()) on every thread and returns when all are done. Not re-entrant.
  virtual void Run(Task task, void* state) = 0;
};

// Runs `fn(thread, num_threads)` on all threads of `executor`.
template <class Fn>
void RunOn(Executor& executor, Fn&& fn) {
  executor.Run([](void* state, int thread, int num_threads) { (*static_cast<Fn*>(state))(thread, num_threads); }, &fn);
}

}  // namespace oscar
