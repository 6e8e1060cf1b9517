// `oscar eval error-chain`: the error of stored rows on its way through the model.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/error_chain.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "tools/command_line.h"
#include "tools/eval_text.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

std::vector<engine::Cell> ErrorCells(const engine::LayerErrors& errors) {
  return {errors.key_codec.value(), errors.value_codec.value(), errors.key.value(),    errors.value.value(),
          errors.score.value(),     errors.mean_attention_kl(), errors.output.value(), errors.hidden.value()};
}

std::vector<engine::Column> ErrorColumns() {
  using engine::NumberFormat;
  const auto error = [](const char* key, const char* heading, const char* unit) {
    return engine::Column{key, heading, unit, NumberFormat::kSignificant, 3};
  };
  return {error("key_codec_error", "K codec", "rel. MSE"), error("value_codec_error", "V codec", "rel. MSE"),
          error("key_error", "K", "rel. MSE"),             error("value_error", "V", "rel. MSE"),
          error("score_error", "scores", "rel. MSE"),      error("attention_kl_nats", "attention", "KL, nats"),
          error("output_error", "output", "rel. MSE"),     error("hidden_error", "hidden", "rel. MSE")};
}

engine::Table LayerTable(const engine::ErrorChainReport& report) {
  std::vector<engine::Column> columns{{"kv", "kv", ""}, {"layer", "layer", ""}};
  for (engine::Column& column : ErrorColumns()) columns.push_back(std::move(column));
  engine::Table table("", std::move(columns));
  for (const engine::ErrorChain& chain : report.chains) {
    for (size_t layer = 0; layer < chain.layers.size(); ++layer) {
      std::vector<engine::Cell> cells{chain.method, static_cast<int64_t>(layer)};
      for (engine::Cell& cell : ErrorCells(chain.layers[layer])) cells.push_back(std::move(cell));
      table.AddRow(std::move(cells));
    }
  }
  return table;
}

engine::Table LogitTable(const engine::ErrorChainReport& report) {
  using engine::NumberFormat;
  engine::Table table("", {{"kv", "kv", ""},
                           {"bits_per_element", "stored", "bits/element", NumberFormat::kDecimal, 2},
                           {"logit_error", "logits", "rel. MSE", NumberFormat::kSignificant, 3},
                           {"kl_mean_nats", "KL", "nats per token", NumberFormat::kSignificant, 3},
                           {"top1_agreement", "same top token", "share", NumberFormat::kDecimal, 3}});
  for (const engine::ErrorChain& chain : report.chains) {
    table.AddRow({chain.method, chain.bits_per_element, chain.logits.value(), chain.kl, chain.top1_agreement});
  }
  return table;
}

Status RunErrorChainCommand(const EvalTextArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const EvalText text, OpenEvalText(arguments, kDefaultSampled));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KvSetup> setups, SetUpMethods("eval error-chain", *text.engine, arguments.methods));
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const engine::ErrorChainReport report,
                         engine::RunErrorChain(*text.engine, setups, text.tokens, text.plan, ProgressControl("error-chain", arguments.quiet)));
  if (arguments.json) {
    engine::JsonReport json("eval error-chain");
    json.Set("model", report.model);
    json.Set("text", text.name);
    json.Set("window_tokens", int64_t{report.window});
    json.Set("sampled_tokens_per_window", int64_t{report.sampled});
    json.Set("windows", int64_t{report.num_windows});
    json.Set("sink_tokens", int64_t{arguments.engine.sink});
    json.Set("recent_tokens", int64_t{arguments.engine.recent});
    json.Add("layers", LayerTable(report));
    json.Add("methods", LogitTable(report));
    fmt::print("{}", json.ToText());
    return {};
  }
  fmt::print("{}; {}: {} windows of {} tokens, the last {} of each looked at\n", report.model, text.name, report.num_windows, report.window,
             report.sampled);
  fmt::print("{}\n{}", LayerTable(report).ToText(), LogitTable(report).ToText());
  return {};
}

}  // namespace

void AddEvalErrorChainCommand(CLI::App& eval, int& exit_code) {
  auto arguments = std::make_shared<EvalTextArguments>();
  arguments->methods = {"int2:naive", "int2:clip", "int2:hadamard", "int2:oscar", "int2:balanced"};
  arguments->windows = 2;
  CLI::App* command = eval.add_subcommand("error-chain", "How errors of stored rows go on through the layers, to scores, outputs, hidden states and logits");
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "that share one exact pass");
  AddEvalTextOptions(*command, *arguments, ScoreOption::kSampled);
  command->callback([arguments, &exit_code] {
    const Status status = RunErrorChainCommand(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval error-chain", status);
  });
}

}  // namespace oscar::tools
