// `oscar eval needle`: retrieval from long contexts: hidden codes under teacher forcing, and the tasks of RULER by generation.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/needle_codes.h"
#include "src/engine/evaluate/retrieval.h"
#include "src/engine/report/json_report.h"
#include "src/engine/report/table.h"
#include "src/io/jsonl_file.h"
#include "tools/command_line.h"
#include "tools/eval_text.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"
#include "tools/validators.h"

namespace oscar::tools {
namespace {

constexpr std::string_view kCodesTask = "codes";

struct NeedleArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"bf16", "int2:balanced"}, tasks{std::string(kCodesTask)};
  std::vector<int> lengths{4096};
  std::string text, squad, hotpotqa, records;
  int samples = 5, texts = 2, codes = 16;
  uint64_t seed = 0;
  bool json = false, quiet = false;
};

struct NeedleTasks {
  bool codes = false;
  std::vector<engine::RetrievalTask> generated;
};

// "all" is every task whose sources were given.
Result<NeedleTasks> ParseTasks(const NeedleArguments& arguments) {
  NeedleTasks tasks;
  for (const std::string& name : arguments.tasks) {
    if (name == kCodesTask || name == "all") tasks.codes = true;
    if (name == kCodesTask) continue;
    if (name != "all") {
      auto task = engine::ParseRetrievalTask(name);
      if (!task.ok()) return Status(task.status().code(), task.status().message() + ", codes and all").WithContext("--task");
      tasks.generated.push_back(*task);
      continue;
    }
    for (const engine::RetrievalTask task : engine::RetrievalTasks()) {
      if (task == engine::RetrievalTask::kQuestions1 && arguments.squad.empty()) continue;
      if (task == engine::RetrievalTask::kQuestions2 && arguments.hotpotqa.empty()) continue;
      tasks.generated.push_back(task);
    }
  }
  return tasks;
}

Status CheckArguments(const NeedleArguments& arguments, engine::Engine& engine) {
  const auto invalid = [](std::string text) { return Status(StatusCode::kInvalidArgument, std::move(text)); };
  if (arguments.samples < 1) return invalid(fmt::format("--samples {}: must be at least 1", arguments.samples));
  if (arguments.texts < 1) return invalid(fmt::format("--texts {}: must be at least 1", arguments.texts));
  if (arguments.codes < 1 || arguments.codes > 256) return invalid(fmt::format("--codes {}: must be between 1 and 256", arguments.codes));
  const int trained = engine.model().config().max_context;
  for (const int length : arguments.lengths) {
    if (length < 1) return invalid(fmt::format("--lengths {}: must be positive", length));
    if (length > trained) return invalid(fmt::format("--lengths {}: the model was trained for {} tokens", length, trained));
  }
  return {};
}

engine::Table CodesTable(const std::vector<engine::NeedleCodesCell>& cells) {
  using engine::NumberFormat;
  engine::Table table("codes: hidden in prose, asked for at the end, teacher forcing",
                      {{"length_tokens", "length", "tokens"},
                       {"kv", "kv", ""},
                       {"bits_per_element", "stored", "bits/element", NumberFormat::kDecimal, 2},
                       {"codes_recalled", "recalled", "codes"},
                       {"codes", "of", "codes"},
                       {"code_tokens_right", "right", "share of tokens", NumberFormat::kDecimal, 3}});
  for (const engine::NeedleCodesCell& cell : cells) {
    table.AddRow({int64_t{cell.length}, cell.method, cell.bits_per_element, int64_t{cell.recalled}, int64_t{cell.codes}, cell.tokens_right});
  }
  return table;
}

engine::Table TasksTable(const std::vector<engine::RetrievalCell>& cells) {
  using engine::NumberFormat;
  engine::Table table("tasks: greedy answers, share of what was asked for",
                      {{"task", "task", ""},
                       {"length_tokens", "length", "tokens"},
                       {"kv", "kv", ""},
                       {"bits_per_element", "stored", "bits/element", NumberFormat::kDecimal, 2},
                       {"prompt_tokens_mean", "prompt", "tokens, mean", NumberFormat::kDecimal, 0},
                       {"score_mean", "score", "mean", NumberFormat::kDecimal, 3}});
  for (const engine::RetrievalCell& cell : cells) {
    table.AddRow({std::string(engine::RetrievalTaskName(cell.task)), int64_t{cell.length}, cell.method, cell.bits_per_element,
                  cell.prompt_tokens, cell.score});
  }
  return table;
}

nlohmann::ordered_json AnswerRecord(const engine::RetrievalAnswer& answer) {
  return {{"task", engine::RetrievalTaskName(answer.task)}, {"length_tokens", answer.length}, {"sample", answer.sample},
          {"kv", answer.method}, {"prompt_tokens", answer.prompt_tokens}, {"expected", answer.expected}, {"answer", answer.answer},
          {"score", answer.score}};
}

Result<engine::RetrievalSources> ReadSources(const NeedleArguments& arguments, const engine::TextSource& text) {
  engine::RetrievalSources sources;
  sources.sentences = engine::SplitSentences(text.text);
  if (!arguments.squad.empty()) {
    OSCAR_ASSIGN_OR_RETURN(sources.questions1, engine::ReadSquad(arguments.squad));
  }
  if (!arguments.hotpotqa.empty()) {
    OSCAR_ASSIGN_OR_RETURN(sources.questions2, engine::ReadHotpotQa(arguments.hotpotqa));
  }
  return sources;
}

Status RunNeedle(const NeedleArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const NeedleTasks tasks, ParseTasks(arguments));
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  OSCAR_TRY(CheckArguments(arguments, *engine));
  OSCAR_ASSIGN_OR_RETURN(const engine::TextSource text, ReadEvalText(arguments.text));
  OSCAR_ASSIGN_OR_RETURN(engine::RetrievalSources sources, ReadSources(arguments, text));
  OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::KvSetup> methods, SetUpMethods("eval needle", *engine, arguments.methods));
  std::optional<io::JsonLinesWriter> records;
  if (!arguments.records.empty()) {
    const std::filesystem::path inputs[] = {engine->model_path(), arguments.text, arguments.squad, arguments.hotpotqa};
    OSCAR_TRY(CheckOutputFile("--records", arguments.records, inputs));
    if (std::error_code error; std::filesystem::exists(arguments.records) && std::filesystem::file_size(arguments.records, error) > 0) {
      return {StatusCode::kInvalidArgument, "--records " + arguments.records + ": exists already; give another name"};
    }
    auto opened = io::JsonLinesWriter::Open(arguments.records, io::JsonLinesWriter::Mode::kTruncate);
    if (!opened.ok()) return opened.status().WithContext("--records");
    records = *std::move(opened);
  }
  CatchInterrupts();
  engine::JsonReport json("eval needle");
  json.Set("model", engine->identity().name);
  json.Set("text", text.name);
  json.Set("seed", uint64_t{arguments.seed});
  if (!arguments.json) fmt::print("{}; {}\n", engine->identity().name, text.name);
  if (tasks.codes) {
    OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> prose, engine::TokenizeSource(engine->tokenizer(), text, kMaxEvalTextBytes, 1));
    engine::NeedleCodesRequest request{methods, prose, arguments.lengths, arguments.texts, arguments.codes, arguments.seed,
                                       ProgressControl("codes", arguments.quiet)};
    OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::NeedleCodesCell> cells, engine::RunNeedleCodes(*engine, request));
    json.Add("codes", CodesTable(cells));
    if (!arguments.json) fmt::print("{}", CodesTable(cells).ToText());
  }
  if (!tasks.generated.empty()) {
    engine::RetrievalRequest request{methods, tasks.generated, arguments.lengths, arguments.samples, arguments.seed, std::move(sources),
                                     [&](const engine::RetrievalAnswer& answer) { return records ? records->Write(AnswerRecord(answer)) : Status(); },
                                     ProgressControl("tasks", arguments.quiet)};
    OSCAR_ASSIGN_OR_RETURN(const std::vector<engine::RetrievalCell> cells, engine::RunRetrieval(*engine, request));
    json.Add("tasks", TasksTable(cells));
    if (!arguments.json) fmt::print("{}", TasksTable(cells).ToText());
  }
  if (arguments.json) fmt::print("{}", json.ToText());
  return {};
}

}  // namespace

void AddEvalNeedleCommand(CLI::App& eval, int& exit_code) {
  auto arguments = std::make_shared<NeedleArguments>();
  CLI::App* command = eval.add_subcommand("needle", "Retrieval from long contexts: hidden codes, and the tasks of RULER");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  AddMethodsOptions(*command, arguments->methods, arguments->engine, "given the same texts");
  AddWindowOptions(*command, arguments->engine);
  std::string names = "codes (teacher forcing), all (whose sources are given)";
  for (const engine::RetrievalTask task : engine::RetrievalTasks()) names += ", " + std::string(engine::RetrievalTaskName(task));
  command->add_option("--task", arguments->tasks, names)->capture_default_str()->delimiter(',')->type_name("NAME,...");
  command->add_option("--lengths", arguments->lengths, "Context lengths")->capture_default_str()->delimiter(',')->type_name("TOKENS,...");
  command->add_option("--samples", arguments->samples, "Items per task and length")->capture_default_str()->type_name("N");
  command->add_option("--texts", arguments->texts, "codes: texts per length")->capture_default_str()->type_name("N");
  command->add_option("--codes", arguments->codes, "codes: codes per text")->capture_default_str()->type_name("N");
  command->add_option("--seed", arguments->seed, "Seed of everything drawn")->check(Seed())->capture_default_str()->type_name("N");
  command->add_option("--text", arguments->text, "Prose that hides the needles: file or folder (default: the text built into the program)")
      ->type_name("PATH");
  command->add_option("--squad", arguments->squad, "Questions for qa_1: a file in SQuAD's layout")->type_name("FILE");
  command->add_option("--hotpotqa", arguments->hotpotqa, "Questions for qa_2: a file in HotpotQA's layout")->type_name("FILE");
  command->add_option("--records", arguments->records, "Write every answer, one JSON object per line")->type_name("FILE");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, &exit_code] {
    const Status status = RunNeedle(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval needle", status);
  });
}

}  // namespace oscar::tools
