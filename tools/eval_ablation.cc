// `oscar eval ablation`: one choice of a method changed at a time.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/ablation.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "tools/command_line.h"
#include "tools/eval_text.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct AblationArguments : EvalTextArguments {
  engine::AblationRequest request;
  std::string calibration_text;
  std::optional<int64_t> calibration_tokens;
};

engine::Table ScoreTable(const engine::AblationReport& report) {
  using engine::NumberFormat;
  engine::Table table("", {{"sweep", "sweep", ""},
                           {"value", "value", ""},
                           {"bits_per_element", "stored", "bits/element", NumberFormat::kDecimal, 2},
                           {"kl_mean_nats", "KL mean", "nats", NumberFormat::kSignificant, 3},
                           {"kl_to_base", "KL", "of base", NumberFormat::kDecimal, 2},
                           {"perplexity", "perplexity", "", NumberFormat::kDecimal, 3},
                           {"top1_agreement", "same top token", "share", NumberFormat::kDecimal, 3}});
  const double base = report.scores.front().score.kl.mean;
  for (const engine::AblationScore& row : report.scores) {
    const engine::Cell ratio = base > 0 ? engine::Cell(row.score.kl.mean / base) : engine::Cell();
    table.AddRow({row.sweep, row.value, row.score.bits_per_element, row.score.kl.mean, ratio, row.score.perplexity, row.score.top1_agreement});
  }
  return table;
}

Status RunAblationCommand(AblationArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const EvalText text, OpenEvalText(arguments, std::nullopt));
  engine::AblationRequest& request = arguments.request;
  const size_t equals = request.method.find('=');
  if (equals != std::string::npos) {
    if (!request.profile.empty()) return {StatusCode::kInvalidArgument, "--profile " + request.profile + ": --kv " + request.method + " names another"};
    request.profile = request.method.substr(equals + 1);
    request.method.resize(equals);
  }
  if (request.method == "int2:oscar" && !request.profile.empty()) {
    return {StatusCode::kInvalidArgument, "the profile " + request.profile + ": the ablation of int2:oscar fits its own profiles"};
  }
  if (request.method != "int2:oscar" && (!arguments.calibration_text.empty() || arguments.calibration_tokens)) {
    return {StatusCode::kInvalidArgument, "--calibration-text and --calibration-tokens: only int2:oscar is fitted in the run"};
  }
  request.calibration_tokens = arguments.calibration_tokens.value_or(request.calibration_tokens);
  OSCAR_ASSIGN_OR_RETURN(request.calibration_text, ReadEvalText(arguments.calibration_text));
  CatchInterrupts();
  if (request.method == "int2:oscar") request.calibration_control = ProgressControl("calibration", arguments.quiet);
  request.control = ProgressControl("ablation", arguments.quiet);
  OSCAR_ASSIGN_OR_RETURN(const engine::AblationReport report, engine::RunAblation(*text.engine, request, text.tokens, text.plan));
  if (arguments.json) {
    engine::JsonReport json("eval ablation");
    json.Set("model", report.model);
    json.Set("kv", report.method);
    json.Set("text", text.name);
    json.Set("window_tokens", int64_t{text.plan.window});
    json.Set("scored_tokens", report.num_scored);
    json.Set("sink_tokens", int64_t{arguments.engine.sink});
    json.Set("recent_tokens", int64_t{arguments.engine.recent});
    json.Set("exact_perplexity", report.exact_perplexity);
    json.Add("settings", ScoreTable(report));
    fmt::print("{}", json.ToText());
    return {};
  }
  fmt::print("{}; {}; {}: {} tokens scored; perplexity of the exact cache {:.3f}\n{}", report.model, report.method, text.name, report.num_scored,
             report.exact_perplexity, ScoreTable(report).ToText());
  return {};
}

}  // namespace

void AddEvalAblationCommand(CLI::App& eval, int& exit_code) {
  auto arguments = std::make_shared<AblationArguments>();
  arguments->windows = 2;
  CLI::App* command = eval.add_subcommand("ablation", "KL with one choice of a method changed at a time: clips, windows, scope, metrics, composition, effort");
  command->add_option("--kv", arguments->request.method, "Method, METHOD or METHOD=PROFILE; int2:oscar is fitted in the run")
      ->capture_default_str()
      ->type_name("METHOD[=FILE]");
  command->add_option("--profile", arguments->request.profile, "Calibrated profile of the method (default: the one beside the model)")->type_name("FILE");
  AddEncodeEffortOption(*command, arguments->engine);
  std::string sweeps;
  for (const std::string_view sweep : engine::AblationSweeps()) sweeps += (sweeps.empty() ? "" : ", ") + std::string(sweep);
  command->add_option("--sweep", arguments->request.sweeps, "What to change (default: all that the method has): " + sweeps)->delimiter(',')->type_name("NAME,...");
  AddEvalTextOptions(*command, *arguments, ScoreOption::kHalf);
  command->add_option("--calibration-text", arguments->calibration_text, "What int2:oscar is fitted on: file or folder (default: the text built into the program)")
      ->type_name("PATH");
  command->add_option("--calibration-tokens", arguments->calibration_tokens, "Tokens of the fit (default: 8192)")->type_name("N");
  command->callback([arguments, &exit_code] {
    const Status status = RunAblationCommand(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval ablation", status);
  });
}

}  // namespace oscar::tools
