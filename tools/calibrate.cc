// `oscar calibrate`: fits the profile of a calibrated method and saves it beside the model.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <unistd.h>
#include <utility>
#include <variant>

#include "oscar/version.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/model_cache.h"
#include "src/engine/report/table.h"
#include "src/engine/runtime/calibration_run.h"
#include "src/engine/runtime/calibration_text.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct CalibrateArguments {
  engine::EngineOptions engine;
  std::string text, output;
  bool has_lloyd_ratio = false;
  int64_t tokens = engine::kDefaultCalibrationTokens;
  int window = engine::kDefaultCalibrationWindow;
  OscarFitOptions fit;
  std::string oscar_option;  // the first option given that only int2:oscar has
  bool quiet = false;
};

void PrintRotations(const FitReport& report) {
  engine::Table table({"layer", "cond K", "cond V", "top-8 K", "top-8 V", "|R'R-I|", "head spread"});
  for (size_t layer = 0; layer < report.layers.size(); ++layer) {
    const FitReport::Layer& row = report.layers[layer];
    table.AddRow({std::to_string(layer), fmt::format("{:.3g}", row.k_condition), fmt::format("{:.3g}", row.v_condition),
                  fmt::format("{:.2f}", row.k_top8_share), fmt::format("{:.2f}", row.v_top8_share),
                  fmt::format("{:.1e}", row.orthogonality_error),
                  fmt::format("{:.2f} (head {})", row.worst_head_spread, row.worst_head)});
  }
  fmt::print("{}", table.ToText());
  if (report.k_convergence >= 0) {
    fmt::print("query moments of the first 3/4 differ by {:.2f} % from those of all\n", 100 * report.k_convergence);
  }
}

// Relative weighted errors per layer and side (quality.md 6), beside the published transforms on the same rows.
void PrintBalanced(const BalancedReport& report) {
  using engine::NumberFormat;
  engine::Table table("", {{"layer", "layer", ""},
                           {"side", "side", ""},
                           {"condition", "cond T", "", NumberFormat::kSignificant, 3},
                           {"predicted", "predicted", "plain rounding", NumberFormat::kSignificant, 3},
                           {"measured", "measured", "error", NumberFormat::kSignificant, 3},
                           {"measured_oscar", "oscar", "error", NumberFormat::kSignificant, 3},
                           {"measured_hadamard", "hadamard", "error", NumberFormat::kSignificant, 3}});
  for (size_t layer = 0; layer < report.layers.size(); ++layer) {
    for (const auto& [name, side] : {std::pair{"K", report.layers[layer].key}, std::pair{"V", report.layers[layer].value}}) {
      std::vector<engine::Cell> cells{static_cast<int64_t>(layer), name, side.condition, side.predicted, side.measured};
      if (side.measured_oscar >= 0) cells.insert(cells.end(), {side.measured_oscar, side.measured_hadamard});
      cells.resize(table.columns().size());
      table.AddRow(std::move(cells));
    }
  }
  fmt::print("{}", table.ToText());
}

void PrintReport(const engine::CalibrationOutcome& outcome, const std::string& path) {
  if (const auto* rotations = std::get_if<FitReport>(&outcome.report)) {
    PrintRotations(*rotations);
  } else if (const auto* balanced = std::get_if<BalancedReport>(&outcome.report)) {
    PrintBalanced(*balanced);
  }
  fmt::print("{} tokens in {:.1f} s\n", outcome.num_tokens, outcome.seconds);
  fmt::print("profile: {}\n", path);
}

// An option that takes one of some names.
template <class Enum>
void AddChoice(CLI::App& app, const char* flag, const char* description, const std::map<std::string, Enum>& choices, Enum& value) {
  app.add_option_function<std::string>(flag, [choices, &value](const std::string& name) { value = choices.at(name); }, description)
      ->check([choices](const std::string& name) {
        return choices.contains(name) ? std::string() : "'" + name + "' is not one of the names in --help";
      })
      ->type_name("NAME");
}

Status Calibrate(const CalibrateArguments& arguments) {
  engine::CalibrationRequest request;
  request.method = arguments.engine.kv;
  request.num_tokens = arguments.tokens;
  request.window_tokens = arguments.window;
  request.oscar_fit = arguments.fit;
  if (!arguments.oscar_option.empty() && request.method != "int2:oscar") {
    return {StatusCode::kInvalidArgument, fmt::format("{} is an option of int2:oscar; {} has none like it", arguments.oscar_option, request.method)};
  }
  if (arguments.has_lloyd_ratio && !arguments.fit.lloyd_levels) {
    return {StatusCode::kInvalidArgument, "--lloyd-ratio: means something with --levels lloyd-affine only"};
  }
  if (arguments.tokens < 1) return {StatusCode::kInvalidArgument, "--tokens must be positive"};
  if (arguments.text.empty()) {
    request.text = {"built-in text of oscar " + std::string(kVersion), std::string(engine::CalibrationText())};
  } else {
    OSCAR_ASSIGN_OR_RETURN(request.text,
                           engine::ReadTextSource(arguments.text, static_cast<uint64_t>(arguments.tokens) * engine::kBytesPerToken));
  }
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  const std::filesystem::path path = arguments.output.empty()
                                         ? engine::ModelCache::ProfilePath(engine->model_path(), request.method)
                                         : std::filesystem::path(arguments.output);
  const std::filesystem::path inputs[] = {engine->model_path(), arguments.text};
  OSCAR_TRY(CheckOutputFile("-o", path, inputs));
  CatchInterrupts();
  request.control = ProgressControl("calibrate", arguments.quiet);
  OSCAR_ASSIGN_OR_RETURN(const engine::CalibrationOutcome outcome, engine::Calibrate(*engine, request));
  if (Interrupted()) return {StatusCode::kCancelled, "interrupted"};
  OSCAR_TRY(outcome.profile.Save(path));
  if (!arguments.quiet) PrintReport(outcome, path.string());
  const auto warn = [](const auto& report) { for (const std::string& warning : report.warnings) Warn("calibrate", warning); };
  if (const auto* rotations = std::get_if<FitReport>(&outcome.report)) warn(*rotations);
  if (const auto* balanced = std::get_if<BalancedReport>(&outcome.report)) warn(*balanced);
  if (outcome.num_tokens < arguments.tokens) {
    Warn("calibrate", fmt::format("the text has {} tokens, fewer than the {} asked for", outcome.num_tokens, arguments.tokens));
  }
  return {};
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<CalibrateArguments>();
  CLI::App* command = app.add_subcommand("calibrate", "Fit the profile of a calibrated KV method");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  command->add_option("--kv", arguments->engine.kv, "Method to calibrate")->capture_default_str()->type_name("METHOD");
  command->add_option("--text", arguments->text, "Text file or folder (default: the text built into the program)")->type_name("PATH");
  command->add_option("-o,--output", arguments->output, "Profile file (default: beside the model)")->type_name("FILE");
  command->add_option("--tokens", arguments->tokens, "Calibration tokens")->capture_default_str()->type_name("N");
  command->add_option("--window", arguments->window, "Tokens per window")->capture_default_str()->type_name("N");
  command->add_flag("--per-head", arguments->fit.per_head, "int2:oscar: one rotation per KV head instead of one per layer");
  AddChoice<KMetric>(*command, "--k-metric", "int2:oscar: what keys are rotated for: query (second moment of queries) or plain (of keys)",
                     {{"query", KMetric::kQuery}, {"plain", KMetric::kPlain}}, arguments->fit.k_metric);
  AddChoice<VMetric>(*command, "--v-metric", "int2:oscar: what values are rotated for: score (weighted by attention), softmax (outputs of attention) or plain",
                     {{"score", VMetric::kScore}, {"softmax", VMetric::kSoftmax}, {"plain", VMetric::kPlain}}, arguments->fit.v_metric);
  AddChoice<Composition>(*command, "--compose", "int2:oscar: parts of the rotation: r_h_pbr, r_h, plain, h_pbr or hadamard",
                         {{"plain", Composition::kPlain},
                          {"r_h", Composition::kRH},
                          {"r_h_pbr", Composition::kRHPbr},
                          {"h_pbr", Composition::kHPbr},
                          {"hadamard", Composition::kHadamard}},
                         arguments->fit.composition);
  command->add_option("--clip-k", arguments->fit.clip_k, "int2:oscar: rank clip ratio of keys; 0: none")->capture_default_str()->type_name("R");
  command->add_option("--clip-v", arguments->fit.clip_v, "int2:oscar: rank clip ratio of values; 0: none")->capture_default_str()->type_name("R");
  AddChoice<bool>(*command, "--levels", "int2:oscar: uniform codes (min-max) or lloyd-affine (Lloyd-Max thresholds)",
                  {{"uniform", false}, {"lloyd-affine", true}}, arguments->fit.lloyd_levels);
  command->add_option("--lloyd-ratio", arguments->fit.lloyd_ratio, "int2:oscar with --levels lloyd-affine: factor on the levels")
      ->capture_default_str()
      ->needs("--levels")
      ->type_name("R");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress and no table");
  command->callback([arguments, command, &exit_code] {
    for (const char* option : {"--per-head", "--k-metric", "--v-metric", "--compose", "--clip-k", "--clip-v", "--levels", "--lloyd-ratio"}) {
      if (arguments->oscar_option.empty() && command->count(option) > 0) arguments->oscar_option = option;
    }
    arguments->has_lloyd_ratio = command->count("--lloyd-ratio") > 0;
    const Status status = Calibrate(*arguments);
    exit_code = status.ok() ? 0 : Fail("calibrate", status);
  });
}

}  // namespace oscar::tools
