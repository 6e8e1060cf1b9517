// `oscar eval ppl` and `oscar eval kl`: perplexity, and divergence from the exact cache, over sliding windows of a text.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/kl_divergence.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "tools/command_line.h"
#include "tools/eval_text.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct EvalArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"int2:balanced"};
  std::string text;
  std::vector<int> lengths;  // of windows; empty: one, of the default length
  std::optional<int> score;
  int windows = 8, buckets = 4;
  bool compare = false, json = false, quiet = false;
  bool by_position = false;  // --buckets was given: the text shows them too
};

using Reports = std::vector<engine::ScoreReport>;  // one per window length

engine::Table MethodTable(const Reports& reports) {
  using engine::NumberFormat;
  std::vector<engine::Column> columns{{"window_tokens", "window", "tokens"},
                                      {"kv", "kv", ""},
                                      {"bits_per_element", "stored", "bits/element", NumberFormat::kDecimal, 2},
                                      {"perplexity", "perplexity", "", NumberFormat::kDecimal, 3}};
  const bool compared = reports.front().methods.front().compared;
  if (compared) {
    columns.insert(columns.end(), {{"kl_mean_nats", "KL mean", "nats", NumberFormat::kDecimal, 4},
                                   {"kl_median_nats", "median", "nats", NumberFormat::kDecimal, 4},
                                   {"kl_p99_nats", "99 %", "nats", NumberFormat::kDecimal, 3},
                                   {"kl_max_nats", "max", "nats", NumberFormat::kDecimal, 2},
                                   {"top1_agreement", "same top token", "share", NumberFormat::kDecimal, 3}});
  }
  engine::Table table("", columns);
  for (const engine::ScoreReport& report : reports) {
    if (compared) table.AddRow({int64_t{report.window}, "exact (bf16)", 16.0, report.exact_perplexity, 0.0, 0.0, 0.0, 0.0, 1.0});
    for (const engine::MethodScore& score : report.methods) {
      std::vector<engine::Cell> row{int64_t{report.window}, score.method, score.bits_per_element, score.perplexity};
      if (compared) row.insert(row.end(), {score.kl.mean, score.kl.median, score.kl.p99, score.kl.max, score.top1_agreement});
      table.AddRow(std::move(row));
    }
  }
  return table;
}

// The same by position.
engine::Table BucketTable(const Reports& reports) {
  using engine::NumberFormat;
  const bool compared = reports.front().methods.front().compared;
  std::vector<engine::Column> columns{{"window_tokens", "window", "tokens"}, {"first_position", "from", "position"}, {"last_position", "to", "position"},
                                      {"kv", "kv", ""}, {"perplexity", "perplexity", "", NumberFormat::kDecimal, 3}};
  if (compared) columns.push_back({"kl_mean_nats", "KL mean", "nats", NumberFormat::kDecimal, 4});
  engine::Table table("", columns);
  for (const engine::ScoreReport& report : reports) {
    const auto add = [&](const std::string& name, const engine::BucketScore& bucket) {
      std::vector<engine::Cell> row{int64_t{report.window}, int64_t{bucket.first_position}, int64_t{bucket.last_position}, name, bucket.perplexity};
      if (compared) row.emplace_back(bucket.kl_mean);
      table.AddRow(std::move(row));
    };
    for (size_t i = 0; i < report.methods.front().buckets.size(); ++i) {
      if (compared) add("exact (bf16)", report.exact_buckets[i]);
      for (const engine::MethodScore& score : report.methods) add(score.method, score.buckets[i]);
    }
  }
  return table;
}

engine::Table LengthTable(const Reports& reports) {
  engine::Table table("", {{"window_tokens", "window", "tokens"}, {"windows", "windows", ""}, {"scored_tokens_per_window", "scored", "tokens per window"}});
  for (const engine::ScoreReport& report : reports) table.AddRow({int64_t{report.window}, int64_t{report.num_windows}, int64_t{report.scored}});
  return table;
}

void PrintJson(const Reports& reports, const EvalArguments& arguments) {
  const engine::ScoreReport& report = reports.front();
  engine::JsonReport json(arguments.compare ? "eval kl" : "eval ppl");
  json.Set("model", report.model);
  json.Set("text", report.text);
  if (reports.size() == 1) {
    json.Set("window_tokens", int64_t{report.window});
    json.Set("scored_tokens_per_window", int64_t{report.scored});
    json.Set("windows", int64_t{report.num_windows});
    json.Set("scored_tokens", report.num_scored);
  } else {
    json.Add("lengths", LengthTable(reports));
  }
  json.Set("sink_tokens", int64_t{arguments.engine.sink});
  json.Set("recent_tokens", int64_t{arguments.engine.recent});
  json.Add("methods", MethodTable(reports));
  if (arguments.buckets > 0) json.Add("buckets", BucketTable(reports));
  fmt::print("{}", json.ToText());
}

// A KL of a nat per token leaves nothing of the model's answers; said in words, so that nobody reads over the figure.
constexpr double kUnusableKl = 1.0;

void PrintText(const Reports& reports, bool with_buckets) {
  for (const engine::ScoreReport& report : reports) {
    fmt::print("{}; {}: {} windows of {} tokens, the last {} of each scored ({} tokens)\n", report.model, report.text,
               report.num_windows, report.window, report.scored, report.num_scored);
  }
  fmt::print("{}", MethodTable(reports).ToText());
  if (with_buckets) fmt::print("{}", BucketTable(reports).ToText());
  for (const engine::ScoreReport& report : reports) {
    for (const engine::MethodScore& score : report.methods) {
      if (!score.compared || score.kl.mean <= kUnusableKl) continue;
      fmt::print("{}: KL {:.2f} nats per token: this model's answers are not usable under this method\n", score.method, score.kl.mean);
    }
  }
}

Status Evaluate(const EvalArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  const int trained = engine->model().config().max_context;
  std::vector<int> lengths = arguments.lengths;
  if (lengths.empty()) lengths.push_back(std::min(engine::kDefaultEvalWindow, trained));
  for (const int window : lengths) OSCAR_TRY(CheckEvalWindow(window, trained));
  if (arguments.windows < 0) return {StatusCode::kInvalidArgument, "--windows must be 0 (all) or positive"};
  if (arguments.buckets < 0) return {StatusCode::kInvalidArgument, "--buckets must be 0 (none) or positive"};
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KvSetup> setups, SetUpMethods(arguments.compare ? "eval kl" : "eval ppl", *engine, arguments.methods));
  OSCAR_ASSIGN_OR_RETURN(const engine::TextSource source, ReadEvalText(arguments.text));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, engine::TokenizeSource(engine->tokenizer(), source, kMaxEvalTextBytes, *std::max_element(lengths.begin(), lengths.end())));
  CatchInterrupts();
  Reports reports;
  for (const int window : lengths) {
    OSCAR_ASSIGN_OR_RETURN(engine::WindowPlan plan,
                           engine::PlanWindows(tokens.size(), window, arguments.score.value_or(window / 2), arguments.windows));
    plan.buckets = arguments.buckets;
    const std::string label = lengths.size() > 1 ? fmt::format("eval, windows of {}", window) : "eval";
    OSCAR_ASSIGN_OR_RETURN(engine::ScoreReport report,
                           engine::ScoreMethods(*engine, setups, tokens, plan, arguments.compare, ProgressControl(label, arguments.quiet)));
    report.text = source.name;
    reports.push_back(std::move(report));
  }
  if (arguments.json) {
    PrintJson(reports, arguments);
  } else {
    PrintText(reports, arguments.by_position);
  }
  return {};
}

void AddOne(CLI::App& eval, const char* name, const char* description, bool compare, int& exit_code) {
  auto arguments = std::make_shared<EvalArguments>();
  arguments->compare = compare;
  CLI::App* command = eval.add_subcommand(name, description);
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "that share one exact pass");
  AddWindowOptions(*command, arguments->engine);
  command->add_option("--text", arguments->text, "Text file or folder (default: the text built into the program)")->type_name("PATH");
  command->add_option("--window", arguments->lengths, "Tokens per window (default 2048); several lengths are run one after the other")
      ->delimiter(',')
      ->type_name("N,...");
  command->add_option("--score", arguments->score, "Tokens scored at the end of each window (default: half of it)")->type_name("N");
  command->add_option("--windows", arguments->windows, "Windows, spread evenly over the text; 0: all")->capture_default_str()->type_name("N");
  command->add_option("--buckets", arguments->buckets, "Parts of the scored positions that are also shown apart; 0: none. Text shows them when asked for")
      ->capture_default_str()
      ->type_name("N");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, command, &exit_code] {
    arguments->by_position = command->count("--buckets") > 0 && arguments->buckets > 0;
    const Status status = Evaluate(*arguments);
    exit_code = status.ok() ? 0 : Fail(arguments->compare ? "eval kl" : "eval ppl", status);
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
  AddEvalReportCommand(*eval, exit_code);
}

}  // namespace oscar::tools
