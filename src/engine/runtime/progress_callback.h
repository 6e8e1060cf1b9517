// How long runs tell how far they are and ask whether to stop. The terminal's line is report/progress.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "oscar/result.h"

namespace oscar::engine {

struct RunControl {
  std::function<void(int64_t done, int64_t total)> progress;  // in units of the run (tokens); may be empty
  const std::atomic<bool>* cancelled = nullptr;

  void Report(int64_t done, int64_t total) const {
    if (progress) progress(done, total);
  }
  Status CheckCancelled() const {
    if (cancelled != nullptr && cancelled->load()) return {StatusCode::kCancelled, "interrupted"};
    return {};
  }
};

}  // namespace oscar::engine
