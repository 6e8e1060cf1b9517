// `oscar eval ppl` and `oscar eval kl`: perplexity, and divergence from the exact cache, over sliding windows of a text.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/kl_divergence.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "src/engine/runtime/calibration_text.h"
#include "src/engine/runtime/text_source.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct EvalArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"int2:balanced"};
  std::string text;
  std::optional<int> window, score;
  int windows = 8;
  bool compare = false, json = false, quiet = false;
};

engine::Table MethodTable(const engine::ScoreReport& report) {
  using engine::NumberFormat;
  std::vector<engine::Column> columns{{"kv", "kv", ""},
                                      {"bits_per_element", "stored", "bits/element", NumberFormat::kDecimal, 2},
                                      {"perplexity", "perplexity", "", NumberFormat::kDecimal, 3}};
  const bool compared = report.methods.front().compared;
  if (compared) {
    columns.insert(columns.end(), {{"kl_mean_nats", "KL mean", "nats", NumberFormat::kDecimal, 4},
                                   {"kl_median_nats", "median", "nats", NumberFormat::kDecimal, 4},
                                   {"kl_p99_nats", "99 %", "nats", NumberFormat::kDecimal, 3},
                                   {"kl_max_nats", "max", "nats", NumberFormat::kDecimal, 2},
                                   {"top1_agreement", "same top token", "share", NumberFormat::kDecimal, 3}});
  }
  engine::Table table("", columns);
  if (compared) table.AddRow({"exact (bf16)", 16.0, report.exact_perplexity, 0.0, 0.0, 0.0, 0.0, 1.0});
  for (const engine::MethodScore& score : report.methods) {
    std::vector<engine::Cell> row{score.method, score.bits_per_element, score.perplexity};
    if (compared) row.insert(row.end(), {score.kl.mean, score.kl.median, score.kl.p99, score.kl.max, score.top1_agreement});
    table.AddRow(std::move(row));
  }
  return table;
}

void PrintJson(const engine::ScoreReport& report, const EvalArguments& arguments) {
  engine::JsonReport json(arguments.compare ? "eval kl" : "eval ppl");
  json.Set("model", report.model);
  json.Set("text", report.text);
  json.Set("window_tokens", int64_t{report.window});
  json.Set("scored_tokens_per_window", int64_t{report.scored});
  json.Set("windows", int64_t{report.num_windows});
  json.Set("scored_tokens", report.num_scored);
  json.Set("sink_tokens", int64_t{arguments.engine.sink});
  json.Set("recent_tokens", int64_t{arguments.engine.recent});
  json.Add("methods", MethodTable(report));
  fmt::print("{}", json.ToText());
}

// A KL of a nat per token leaves nothing of the model's answers; said in words, so that nobody reads over the figure.
constexpr double kUnusableKl = 1.0;

void PrintText(const engine::ScoreReport& report) {
  fmt::print("{}; {}: {} windows of {} tokens, the last {} of each scored ({} tokens)\n", report.model, report.text,
             report.num_windows, report.window, report.scored, report.num_scored);
  fmt::print("{}", MethodTable(report).ToText());
  for (const engine::MethodScore& score : report.methods) {
    if (score.compared && score.kl.mean > kUnusableKl) {
      fmt::print("{}: KL {:.2f} nats per token: this model's answers are not usable under this method\n", score.method, score.kl.mean);
    }
  }
}

Status Evaluate(const EvalArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  const int trained = engine->model().config().max_context;
  const int window = arguments.window.value_or(std::min(engine::kDefaultEvalWindow, trained));
  if (window < 2) return {StatusCode::kInvalidArgument, fmt::format("--window {}: must be at least 2", window)};
  if (window > trained) {
    return {StatusCode::kInvalidArgument, fmt::format("--window {}: the model was trained for {} tokens", window, trained)};
  }
  if (arguments.windows < 0) return {StatusCode::kInvalidArgument, "--windows must be 0 (all) or positive"};
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KvSetup> setups, SetUpMethods("eval", *engine, arguments.methods));
  engine::TextSource source{"built-in text", std::string(engine::CalibrationText())};
  if (!arguments.text.empty()) {
    OSCAR_ASSIGN_OR_RETURN(source, engine::ReadTextSource(arguments.text, uint64_t{64} << 20));
  }
  const int64_t most = int64_t{64} << 20;
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, engine::TokenizeSource(engine->tokenizer(), source, most, window));
  OSCAR_ASSIGN_OR_RETURN(const engine::WindowPlan plan,
                         engine::PlanWindows(tokens.size(), window, arguments.score.value_or(window / 2), arguments.windows));
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(engine::ScoreReport report,
                         engine::ScoreMethods(*engine, setups, tokens, plan, arguments.compare, ProgressControl("eval", arguments.quiet)));
  report.text = source.name;
  if (arguments.json) {
    PrintJson(report, arguments);
  } else {
    PrintText(report);
  }
  return {};
}

void AddOne(CLI::App& eval, const char* name, const char* description, bool compare, int& exit_code) {
  auto arguments = std::make_shared<EvalArguments>();
  arguments->compare = compare;
  CLI::App* command = eval.add_subcommand(name, description);
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  command->add_option("--kv", arguments->methods, "Methods, each METHOD or METHOD=PROFILE, that share one exact pass: " + KvMethodNames())
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("METHOD[=FILE],...");
  AddEncodeEffortOption(*command, arguments->engine);
  AddWindowOptions(*command, arguments->engine);
  command->add_option("--text", arguments->text, "Text file or folder (default: the text built into the program)")->type_name("PATH");
  command->add_option("--window", arguments->window, "Tokens per window (default 2048)")->type_name("N");
  command->add_option("--score", arguments->score, "Tokens scored at the end of each window (default: half of it)")->type_name("N");
  command->add_option("--windows", arguments->windows, "Windows, spread evenly over the text; 0: all")->capture_default_str()->type_name("N");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, &exit_code] {
    const Status status = Evaluate(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval", status);
  });
}

}  // namespace

void AddEvalCommand(CLI::App& app, int& exit_code) {
  CLI::App* eval = app.add_subcommand("eval", "Measure what a KV method does to a model's answers");
  eval->require_subcommand(1);
  AddOne(*eval, "kl", "KL divergence per token from the exact cache, and perplexity", true, exit_code);
  AddOne(*eval, "ppl", "Perplexity", false, exit_code);
  AddEvalNeedleCommand(*eval, exit_code);
  AddEvalTasksCommand(*eval, exit_code);
  AddEvalErrorChainCommand(*eval, exit_code);
  AddEvalBasisCommand(*eval, exit_code);
  AddEvalAblationCommand(*eval, exit_code);
}

}  // namespace oscar::tools
