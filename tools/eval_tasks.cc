// `oscar eval tasks`: the accuracy benchmarks of the paper from local files.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <memory>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/task_run.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "src/engine/sample/sampling_params.h"
#include "tools/command_line.h"
#include "tools/report_steps.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct TaskArguments {
  engine::EngineOptions engine;
  engine::SamplingParams sampling{.temperature = 0};
  std::vector<std::string> methods{"bf16", "int2:balanced"};
  std::string suite, data, python = "python3", records, template_variables;
  int samples = 1, limit = 0, max_tokens = 1024;
  bool json = false, quiet = false;
};

engine::Table ScoreTable(const std::vector<engine::TaskScore>& scores) {
  using engine::NumberFormat;
  engine::Table table("", {{"kv", "kv", ""},
                           {"pass_rate", "pass@1", "share", NumberFormat::kDecimal, 4},
                           {"pass_rate_deviation", "deviation", "of samples", NumberFormat::kDecimal, 4},
                           {"answers", "answers", ""},
                           {"truncated", "cut off", "share", NumberFormat::kDecimal, 3},
                           {"answer_tokens_mean", "length", "tokens, mean", NumberFormat::kDecimal, 0}});
  for (const engine::TaskScore& score : scores) {
    table.AddRow({score.method, score.pass_rate, score.deviation, int64_t{score.answers}, score.truncated, score.answer_tokens});
  }
  return table;
}

// `limit` items spread evenly from the first to the last.
std::vector<engine::TaskItem> Spread(std::vector<engine::TaskItem> items, int limit) {
  if (limit == 0 || static_cast<size_t>(limit) >= items.size()) return items;
  std::vector<engine::TaskItem> taken;
  for (size_t i = 0; i < static_cast<size_t>(limit); ++i) {
    taken.push_back(items[limit == 1 ? 0 : i * (items.size() - 1) / (static_cast<size_t>(limit) - 1)]);
  }
  return taken;
}

Status RunTaskSuite(const TaskArguments& arguments) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  auto suite = engine::ParseTaskSuite(arguments.suite);
  if (!suite.ok()) return suite.status().WithContext("--suite");
  OSCAR_TRY(CheckSamplingOptions(arguments.sampling));
  if (arguments.samples < 1) return invalid(fmt::format("--samples {}: must be at least 1", arguments.samples));
  if (arguments.limit < 0) return invalid(fmt::format("--limit {}: must be 0 (all) or positive", arguments.limit));
  if (arguments.max_tokens < 1) return invalid(fmt::format("--max-tokens {}: must be at least 1", arguments.max_tokens));
  OSCAR_TRY(CheckPython(arguments.python));
  engine::TaskRunRequest request;
  request.suite = *suite;
  OSCAR_ASSIGN_OR_RETURN(request.items, engine::ReadTaskItems(*suite, arguments.data, arguments.sampling.seed.value_or(0)));
  request.items = Spread(std::move(request.items), arguments.limit);
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  OSCAR_ASSIGN_OR_RETURN(request.methods, SetUpMethods("eval tasks", *engine, arguments.methods));
  request.samples = arguments.samples;
  request.sampling = arguments.sampling;
  request.max_tokens = arguments.max_tokens;
  request.template_variables = arguments.template_variables;
  request.python = arguments.python;
  request.records = arguments.records;
  request.control = ProgressControl("tasks", arguments.quiet, "answers");
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::TaskScore> scores, engine::RunTasks(*engine, request));
  if (arguments.json) {
    engine::JsonReport json("eval tasks");
    json.Set("model", engine->identity().name);
    json.Set("suite", std::string(engine::TaskSuiteName(*suite)));
    json.Set("items", int64_t{static_cast<int64_t>(request.items.size())});
    json.Set("samples", int64_t{arguments.samples});
    json.Set("temperature", double{arguments.sampling.temperature});
    json.Add("methods", ScoreTable(scores));
    fmt::print("{}", json.ToText());
  } else {
    fmt::print("{}; {}: {} items, {} samples each, temperature {}\n{}", engine->identity().name, engine::TaskSuiteName(*suite),
               request.items.size(), arguments.samples, arguments.sampling.temperature, ScoreTable(scores).ToText());
  }
  return {};
}

}  // namespace

void AddEvalTasksCommand(CLI::App& eval, int& exit_code) {
  auto arguments = std::make_shared<TaskArguments>();
  CLI::App* command = eval.add_subcommand("tasks", "Accuracy on HumanEval, GPQA, AIME25, MATH500 or LiveCodeBench from a local file");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  AddContextOption(*command, arguments->engine);
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "given the same items");
  AddWindowOptions(*command, arguments->engine);
  command->add_option("--suite", arguments->suite, "humaneval, gpqa, aime25, math500 or livecodebench")->required()->type_name("NAME");
  command->add_option("--data", arguments->data, "The suite's records: JSON lines, plain or gzip")->required()->type_name("FILE");
  command->add_option("--samples", arguments->samples, "Answers per item")->capture_default_str()->type_name("N");
  command->add_option("--limit", arguments->limit, "Items, spread evenly over the file; 0: all")->capture_default_str()->type_name("N");
  command->add_option("-n,--max-tokens", arguments->max_tokens, "Longest answer")->capture_default_str()->type_name("N");
  command->add_option("--template-variables", arguments->template_variables, "JSON object for the chat template")->type_name("JSON");
  command->add_option("--python", arguments->python, "Runs code and compares expressions, in a sandbox")->capture_default_str()->type_name("PROGRAM");
  command->add_option("--records", arguments->records, "Write every answer, one JSON object per line; an interrupted run goes on from there")
      ->type_name("FILE");
  AddSamplingOptions(*command, arguments->sampling);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, &exit_code] {
    const Status status = RunTaskSuite(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval tasks", status);
  });
}

}  // namespace oscar::tools
