#include "src/engine/bench/speed.h"

#include <algorithm>
#include <chrono>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

struct Runner {
  std::unique_ptr<KvCache> cache;
  SequenceId sequence = 0;
  double prefill_seconds = 0;
  std::vector<double> decode_seconds;
};

Result<double> TimedStep(Engine& engine, Runner& runner, std::span<const int32_t> tokens, std::vector<float>& logits) {
  const StepSequence step{runner.sequence, tokens, false};
  const auto start = std::chrono::steady_clock::now();
  OSCAR_TRY(engine.model().Forward({&step, 1}, *runner.cache, &logits));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Status CheckRequest(const Engine& engine, int max_context, std::span<const int32_t> tokens, const SpeedRequest& request) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (request.methods.empty()) return invalid("bench: no KV method given");
  if (request.contexts.empty() || request.contexts.front() < 1 || !std::is_sorted(request.contexts.begin(), request.contexts.end())) {
    return invalid("bench: contexts must be positive and ascending");
  }
  for (size_t i = 1; i < request.contexts.size(); ++i) {
    if (request.contexts[i] - request.contexts[i - 1] <= request.decode_tokens) {
      return invalid("bench: contexts " + std::to_string(request.contexts[i - 1]) + " and " + std::to_string(request.contexts[i]) +
                     " are closer than the " + std::to_string(request.decode_tokens) + " decode steps between them");
    }
  }
  if (request.decode_tokens < 1) return invalid("bench: --decode-tokens must be at least 1");
  const int64_t needed = SpeedTokensNeeded(request);
  if (needed > max_context) {
    return invalid("bench: needs " + std::to_string(needed) + " tokens of context; " + engine.identity().name +
                   " was trained for " + std::to_string(max_context));
  }
  if (static_cast<int64_t>(tokens.size()) < needed) {
    return invalid("bench: the text has " + std::to_string(tokens.size()) + " tokens, " + std::to_string(needed) + " are needed");
  }
  return {};
}

}  // namespace

int64_t SpeedTokensNeeded(const SpeedRequest& request) {
  if (request.contexts.empty()) return 0;
  return request.contexts.back() + static_cast<int64_t>(request.decode_tokens) + 1;
}

Result<SpeedReport> MeasureSpeed(Engine& engine, std::span<const int32_t> tokens, const SpeedRequest& request) {
  OSCAR_TRY(CheckRequest(engine, engine.model().config().max_context, tokens, request));
  std::vector<Runner> runners(request.methods.size());
  for (size_t m = 0; m < runners.size(); ++m) {
    OSCAR_ASSIGN_OR_RETURN(runners[m].cache, engine.NewCache(request.methods[m], static_cast<int>(SpeedTokensNeeded(request))));
    OSCAR_ASSIGN_OR_RETURN(runners[m].sequence, runners[m].cache->NewSequence());
  }
  SpeedReport report{engine.identity().name, engine.threads(), {}};
  std::vector<float> logits;
  int at = 0, prefill_tokens = 0;
  const int64_t total = SpeedTokensNeeded(request);
  for (const int context : request.contexts) {
    while (at < context) {
      OSCAR_TRY(request.control.CheckCancelled());
      const int count = std::min(kMaxStepTokens, context - at);
      for (Runner& runner : runners) {
        OSCAR_ASSIGN_OR_RETURN(const double seconds, TimedStep(engine, runner, tokens.subspan(at, count), logits));
        runner.prefill_seconds += seconds;
      }
      prefill_tokens += count;
      request.control.Report(at += count, total);
    }
    // One untimed step first: it builds the graphs of a single token.
    for (int i = -1; i < request.decode_tokens; ++i) {
      OSCAR_TRY(request.control.CheckCancelled());
      for (Runner& runner : runners) {
        OSCAR_ASSIGN_OR_RETURN(const double seconds, TimedStep(engine, runner, tokens.subspan(at, 1), logits));
        if (i >= 0) runner.decode_seconds.push_back(seconds);
      }
      ++at;
    }
    for (size_t m = 0; m < runners.size(); ++m) {
      std::vector<double>& times = runners[m].decode_seconds;
      std::sort(times.begin(), times.end());
      SpeedCell cell{request.methods[m].method.name(), context, prefill_tokens, runners[m].prefill_seconds, {}, 0};
      if (!times.empty()) cell.decode = {times.front(), times[times.size() / 2], times.back()};
      const KvCacheStats stats = runners[m].cache->stats();
      cell.used_bytes = stats.used_bytes();
      report.cells.push_back(std::move(cell));
      times.clear();
    }
  }
  return report;
}

}  // namespace oscar::engine
