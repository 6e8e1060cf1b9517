// What the evaluations over windows of a text have in common: their options, and the model, tokens and windows these name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/evaluate/windows.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/text_source.h"

namespace CLI {
class App;
}

namespace oscar::tools {

struct EvalTextArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods;
  std::string text;
  std::optional<int> window, score;
  int windows = 8;
  bool json = false, quiet = false;
};

// Whether the end of each window is scored, by default half of it; only looked at, by default 64 tokens; or all of it is seen.
enum class ScoreOption { kHalf, kSampled, kAbsent };
inline constexpr int kDefaultSampled = 64;

// -m, -t, --text, --window, --windows, --json, -q; --sink, --recent and --score unless all is seen.
void AddEvalTextOptions(CLI::App& app, EvalTextArguments& arguments, ScoreOption score);

inline constexpr int64_t kMaxEvalTextBytes = int64_t{64} << 20;
// The file or folder of --text; empty: the text built into the program. Errors as ReadTextSource.
Result<engine::TextSource> ReadEvalText(const std::string& path);
// kInvalidArgument unless a window has 2 tokens and no more than the model was trained for.
Status CheckEvalWindow(int window, int trained_tokens);

struct EvalText {
  std::unique_ptr<engine::Engine> engine;
  std::string name;             // of the text
  std::vector<int32_t> tokens;
  engine::WindowPlan plan;
};
// default_score: of the window; nothing: half of it. kInvalidArgument for a window that the model was not trained for or a text too short.
Result<EvalText> OpenEvalText(const EvalTextArguments& arguments, std::optional<int> default_score);

}  // namespace oscar::tools
