// Teacher forcing over windows of a text: every evaluation that compares logits runs through here, several KV methods in one
// run, so that they share tokens, chunking and one exact pass.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/progress_callback.h"

namespace oscar::engine {

inline constexpr int kDefaultEvalWindow = 2048;  // tokens; the second half is scored (quality.md 1)

// Windows of `window` tokens; in each the last `scored` tokens are predicted and scored, the others are context.
struct WindowPlan {
  int window = 0;
  int scored = 0;
  std::vector<size_t> starts;  // first token of each window
  int buckets = 4;             // equal parts of the scored positions that scores are also given for; at most `scored` of them
};

// Windows that slide by `scored` over the text; if there are more than max_windows (0: no limit), that many of them, spread
// evenly. kInvalidArgument: window < 2, scored outside [1, window - 1], or a text shorter than one window.
Result<WindowPlan> PlanWindows(size_t num_tokens, int window, int scored, int max_windows);

// Scored positions of one step: row i of logits[m] belongs to method m and predicts targets[i].
struct ScoredRows {
  int window_index = 0;
  int first_position = 0;               // of row 0, in its window
  std::span<const int32_t> targets;     // [n]
  std::vector<std::span<const float>> logits;  // per method [n, vocab_size]
};
using ScoredRowsVisitor = std::function<Status(const ScoredRows&)>;

// Runs each window through every method in step. tokens must outlive the call.
Status RunWindows(Engine& engine, std::span<const KvSetup> methods, std::span<const int32_t> tokens, const WindowPlan& plan,
                  const ScoredRowsVisitor& visit, const RunControl& control);

}  // namespace oscar::engine
