#include "src/engine/evaluate/observed_pass.h"

#include <algorithm>
#include <memory>

#include "src/base/status_macros.h"

namespace oscar::engine {

Status ObserveWindows(Engine& engine, std::span<const int32_t> tokens, const WindowPlan& plan, StepObserver& observer, const RunControl& control) {
  const int64_t total = static_cast<int64_t>(plan.starts.size()) * plan.window;
  int64_t done = 0;
  OSCAR_ASSIGN_OR_RETURN(const KvSetup exact, engine.SetUpKv("bf16", {}));
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<KvCache> cache, engine.NewCache(exact, plan.window));
  for (const size_t start : plan.starts) {
    OSCAR_ASSIGN_OR_RETURN(const SequenceId sequence, cache->NewSequence());
    for (int at = 0; at < plan.window;) {
      OSCAR_TRY(control.CheckCancelled());
      const int count = std::min(cache->config().max_step_tokens, plan.window - at);
      const StepSequence step{sequence, tokens.subspan(start + static_cast<size_t>(at), static_cast<size_t>(count)), false};
      observer.set_first_position(at);
      OSCAR_TRY(engine.model().Forward({&step, 1}, *cache, nullptr, &observer));
      at += count;
      control.Report(done += count, total);
    }
    OSCAR_TRY(cache->Release(sequence));
  }
  return {};
}

}  // namespace oscar::engine
