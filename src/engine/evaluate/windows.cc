#include "src/engine/evaluate/windows.h"

#include <algorithm>

#include "src/base/status_macros.h"

namespace oscar::engine {
namespace {

// Rows of logits held at once per method: 256 x 152K x 4 bytes is 156 MB. Fewer when many methods run together.
constexpr int kStepTokens = 256;
constexpr int64_t kLogitBytes = int64_t{2} << 30;

int StepTokens(const Engine& engine, size_t num_methods) {
  const int64_t row_bytes = static_cast<int64_t>(num_methods) * engine.model().config().vocab_size * static_cast<int64_t>(sizeof(float));
  return static_cast<int>(std::clamp<int64_t>(kLogitBytes / row_bytes, 1, kStepTokens));
}

struct MethodRun {
  std::unique_ptr<KvCache> cache;
  SequenceId sequence = 0;
  std::vector<float> logits;
};

// One step of a window: tokens [at, at + count).
struct WindowStep {
  int window_index;
  std::span<const int32_t> window;
  int at, count;
  bool scored;
};

// Feeds a step to every method; scored rows go to the visitor.
Status RunStep(Engine& engine, std::vector<MethodRun>& runs, const WindowStep& step, const ScoredRowsVisitor& visit) {
  ScoredRows rows;
  rows.window_index = step.window_index;
  rows.first_position = step.at;
  rows.targets = step.window.subspan(step.at + 1, step.scored ? step.count : 0);
  for (MethodRun& run : runs) {
    const StepSequence part{run.sequence, step.window.subspan(step.at, step.count), step.scored};
    OSCAR_TRY(engine.model().Forward({&part, 1}, *run.cache, step.scored ? &run.logits : nullptr));
    rows.logits.push_back(run.logits);
  }
  return step.scored ? visit(rows) : Status();
}

}  // namespace

Result<WindowPlan> PlanWindows(size_t num_tokens, int window, int scored, int max_windows) {
  if (window < 2) return {StatusCode::kInvalidArgument, "--window " + std::to_string(window) + ": must be at least 2"};
  if (scored < 1 || scored >= window) {
    return {StatusCode::kInvalidArgument,
            "--score " + std::to_string(scored) + ": must be between 1 and " + std::to_string(window - 1)};
  }
  if (num_tokens < static_cast<size_t>(window)) {
    return {StatusCode::kInvalidArgument, "the text has " + std::to_string(num_tokens) + " tokens, one window needs " +
                                              std::to_string(window)};
  }
  const size_t count = (num_tokens - window) / scored + 1;
  const size_t taken = max_windows > 0 ? std::min<size_t>(count, max_windows) : count;
  WindowPlan plan{.window = window, .scored = scored, .starts = {}};
  for (size_t i = 0; i < taken; ++i) {
    const size_t index = taken == 1 ? 0 : i * (count - 1) / (taken - 1);
    plan.starts.push_back(index * scored);
  }
  return plan;
}

Status RunWindows(Engine& engine, std::span<const KvSetup> methods, std::span<const int32_t> tokens, const WindowPlan& plan,
                  const ScoredRowsVisitor& visit, const RunControl& control) {
  std::vector<MethodRun> runs;
  for (const KvSetup& method : methods) {
    OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, engine.NewCache(method, plan.window));
    runs.push_back({std::move(cache), 0, {}});
  }
  const int64_t total = static_cast<int64_t>(plan.starts.size()) * plan.window;
  const bool bos = engine.tokenizer().adds_bos();
  const int step_tokens = StepTokens(engine, methods.size());
  for (size_t index = 0; index < plan.starts.size(); ++index) {
    std::vector<int32_t> window(tokens.begin() + plan.starts[index], tokens.begin() + plan.starts[index] + plan.window);
    if (bos) window[0] = engine.tokenizer().bos_id();  // as the model saw every text in training
    for (MethodRun& run : runs) {
      OSCAR_ASSIGN_OR_RETURN(run.sequence, run.cache->NewSequence());
    }
    // The last token of a window is only a target.
    const int end = plan.window - 1, first_scored = end - plan.scored;
    for (int at = 0; at < end;) {
      OSCAR_TRY(control.CheckCancelled());
      const bool scored = at >= first_scored;
      const int count = std::min(scored ? step_tokens : kStepTokens, (scored ? end : first_scored) - at);
      OSCAR_TRY(RunStep(engine, runs, {static_cast<int>(index), window, at, count, scored}, visit));
      at += count;
      control.Report(static_cast<int64_t>(index) * plan.window + at, total);
    }
    for (MethodRun& run : runs) OSCAR_TRY(run.cache->Release(run.sequence));
  }
  control.Report(total, total);
  return {};
}

}  // namespace oscar::engine
