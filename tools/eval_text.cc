#include "tools/eval_text.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>

#include "src/base/status_macros.h"
#include "src/engine/runtime/calibration_text.h"
#include "tools/command_line.h"

namespace oscar::tools {

void AddEvalTextOptions(CLI::App& app, EvalTextArguments& arguments, ScoreOption score) {
  AddModelOptions(app, arguments.engine);
  AddDeviceOption(app, arguments.engine);
  if (score != ScoreOption::kAbsent) AddWindowOptions(app, arguments.engine);  // all of it: nothing is cached but exactly
  app.add_option("--text", arguments.text, "Text file or folder (default: the text built into the program)")->type_name("PATH");
  app.add_option("--window", arguments.window, "Tokens per window (default 2048)")->type_name("N");
  if (score == ScoreOption::kHalf) {
    app.add_option("--score", arguments.score, "Tokens scored at the end of each window (default: half of it)")->type_name("N");
  } else if (score == ScoreOption::kSampled) {
    app.add_option("--score", arguments.score, "Tokens looked at, at the end of each window (default: 64)")->type_name("N");
  }
  app.add_option("--windows", arguments.windows, "Windows, spread evenly over the text; 0: all")->capture_default_str()->type_name("N");
  app.add_flag("--json", arguments.json, "Print JSON");
  app.add_flag("-q,--quiet", arguments.quiet, "No progress");
}

Result<engine::TextSource> ReadEvalText(const std::string& path) {
  if (!path.empty()) return engine::ReadTextSource(path, kMaxEvalTextBytes);
  return engine::TextSource{"built-in text", std::string(engine::CalibrationText())};
}

Status CheckEvalWindow(int window, int trained_tokens) {
  if (window < 2) return {StatusCode::kInvalidArgument, fmt::format("--window {}: must be at least 2", window)};
  if (window > trained_tokens) {
    return {StatusCode::kInvalidArgument, fmt::format("--window {}: the model was trained for {} tokens", window, trained_tokens)};
  }
  return {};
}

Result<EvalText> OpenEvalText(const EvalTextArguments& arguments, std::optional<int> default_score) {
  EvalText opened;
  OSCAR_ASSIGN_OR_RETURN(opened.engine, engine::Engine::OpenModel(arguments.engine));
  const int trained = opened.engine->model().config().max_context;
  const int window = arguments.window.value_or(std::min(engine::kDefaultEvalWindow, trained));
  OSCAR_TRY(CheckEvalWindow(window, trained));
  if (arguments.windows < 0) return {StatusCode::kInvalidArgument, "--windows must be 0 (all) or positive"};
  OSCAR_ASSIGN_OR_RETURN(const engine::TextSource source, ReadEvalText(arguments.text));
  opened.name = source.name;
  OSCAR_ASSIGN_OR_RETURN(opened.tokens, engine::TokenizeSource(opened.engine->tokenizer(), source, kMaxEvalTextBytes, window));
  OSCAR_ASSIGN_OR_RETURN(opened.plan, engine::PlanWindows(opened.tokens.size(), window, arguments.score.value_or(default_score.value_or(window / 2)),
                                                          arguments.windows));
  return opened;
}

}  // namespace oscar::tools
