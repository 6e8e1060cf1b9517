// `oscar eval report`: all evaluations of one model within a budget of minutes, as one HTML page.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "oscar/version.h"
#include "src/base/status_macros.h"
#include "src/engine/evaluate/kl_divergence.h"
#include "src/engine/evaluate/task_run.h"
#include "src/engine/hub/model_cache.h"
#include "src/engine/runtime/calibration_run.h"
#include "src/engine/runtime/calibration_text.h"
#include "src/io/json_file.h"
#include "tools/command_line.h"
#include "tools/report_page.h"
#include "tools/report_plan.h"
#include "tools/report_steps.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  engine::EngineOptions engine;
  std::vector<std::string> methods{"int2:naive", "int2:clip", "int2:hadamard", "int2:oscar", "int2:balanced", "int1:balanced", "kivi", "q4_0"};
  std::string text, code, suite, data, page = "report.html", work, python = "python3";
  double minutes = 30;
  int window = 0;  // 0: what the budget has
  bool quiet = false;
};

std::string Machine() {
  utsname names{};
  uname(&names);
  return fmt::format("{} {}, cores for this process: {}", names.sysname, names.machine, engine::AvailableCores());
}

// Bytes and time of the last change of a file, or of all files of a folder; empty for what is not there.
std::string StateOf(const fs::path& path) {
  std::error_code error;
  uintmax_t bytes = 0;
  fs::file_time_type changed = fs::file_time_type::min();
  const auto add = [&](const fs::path& file) {
    const uintmax_t size = fs::file_size(file, error);
    if (!error) bytes += size;
    if (const auto time = fs::last_write_time(file, error); !error) changed = std::max(changed, time);
  };
  if (!fs::is_directory(path, error)) {
    if (!fs::exists(path, error)) return "";
    add(path);
  } else {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path, fs::directory_options::skip_permission_denied, error)) {
      if (entry.is_regular_file(error)) add(entry.path());
    }
  }
  return fmt::format("{} bytes, changed {}", bytes, std::chrono::duration_cast<std::chrono::seconds>(changed.time_since_epoch()).count());
}

// The profiles that methods name, or that lie beside the model.
std::string StateOfProfiles(const std::vector<std::string>& methods, const fs::path& model) {
  std::string states;
  for (const std::string& method : methods) {
    const size_t equals = method.find('=');
    if (equals != std::string::npos) states += method + ": " + StateOf(method.substr(equals + 1)) + "; ";
    else if (engine::IsCalibrated(method)) states += method + ": " + StateOf(engine::ModelCache::ProfilePath(model, method)) + "; ";
  }
  return states;
}

// What the plan was made from: a folder with another plan is not gone on with.
nlohmann::ordered_json SettingsOf(const ReportArguments& arguments) {
  const auto model = engine::ModelCache().Resolve(arguments.engine.model);
  return {{"model", arguments.engine.model}, {"model_file", model.ok() ? StateOf(*model) : ""}, {"text_files", StateOf(arguments.text)},
          {"code_files", StateOf(arguments.code)}, {"minutes", arguments.minutes}, {"methods", arguments.methods}, {"profile_files", model.ok() ? StateOfProfiles(arguments.methods, *model) : ""}, {"text", arguments.text}, {"code", arguments.code},
          {"suite", arguments.suite}, {"data", arguments.data}, {"data_file", StateOf(arguments.data)}, {"window", arguments.window},
          {"device", arguments.engine.device == engine::Device::kCuda ? "cuda" : "cpu"}, {"weights", std::string(NameOf(arguments.engine.weights))}, {"sink", arguments.engine.sink}, {"recent", arguments.engine.recent}, {"version", std::string(kVersion)}};
}

std::string RedrawCommand(const ReportArguments& arguments, const fs::path& work) {
  std::vector<std::string> words{"eval", "report", "-m", arguments.engine.model, "--minutes", fmt::format("{}", arguments.minutes), "--kv",
                                 fmt::format("{}", fmt::join(arguments.methods, ",")), "--sink", std::to_string(arguments.engine.sink), "--recent",
                                 std::to_string(arguments.engine.recent)};
  if (!arguments.text.empty()) words.insert(words.end(), {"--text", arguments.text});
  if (!arguments.code.empty()) words.insert(words.end(), {"--code", arguments.code});
  if (!arguments.suite.empty()) words.insert(words.end(), {"--suite", arguments.suite, "--data", arguments.data});
  if (arguments.window > 0) words.insert(words.end(), {"--window", std::to_string(arguments.window)});
  if (arguments.engine.device == engine::Device::kCuda) words.insert(words.end(), {"--device", "cuda"});
  if (arguments.engine.weights != engine::WeightPrecision::kStored) words.insert(words.end(), {"--weights", std::string(NameOf(arguments.engine.weights))});
  if (arguments.engine.threads > 0) words.insert(words.end(), {"-t", std::to_string(arguments.engine.threads)});
  words.insert(words.end(), {"--python", arguments.python, "--work", work.string(), "-o", arguments.page});
  return CommandLine(words);
}

// Tokens per second of the exact cache, logits included, over a short window.
Result<double> MeasureSpeed(engine::Engine& engine) {
  const engine::TextSource source{"built-in text", std::string(engine::CalibrationText())};
  OSCAR_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, engine::TokenizeSource(engine.tokenizer(), source, 512, 128));
  OSCAR_ASSIGN_OR_RETURN(const engine::WindowPlan plan, engine::PlanWindows(tokens.size(), static_cast<int>(tokens.size()), static_cast<int>(tokens.size()) / 2, 1));
  OSCAR_ASSIGN_OR_RETURN(engine::KvSetup exact, engine.SetUpKv("bf16", {}));
  const auto start = std::chrono::steady_clock::now();
  OSCAR_TRY(engine::ScoreMethods(engine, {std::move(exact)}, tokens, plan, /*compare=*/false, ProgressControl("eval", /*quiet=*/true)).status());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(tokens.size()) / std::max(seconds, 1e-3);
}

Result<nlohmann::ordered_json> MakePlan(const ReportArguments& arguments, const fs::path& work) {
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  ReportBudget budget;
  budget.seconds = 60 * arguments.minutes;
  OSCAR_ASSIGN_OR_RETURN(budget.tokens_per_second, MeasureSpeed(*engine));
  budget.trained_tokens = engine->model().config().max_context;
  budget.head_dim = engine->model().config().kv.head_dim;
  budget.kl_window = arguments.window;
  if (arguments.window > budget.trained_tokens) {
    return Status(StatusCode::kInvalidArgument, fmt::format("--window {}: the model was trained for {} tokens", arguments.window, budget.trained_tokens));
  }
  if (!arguments.suite.empty()) {
    auto suite = engine::ParseTaskSuite(arguments.suite);
    if (!suite.ok()) return suite.status().WithContext("--suite");
    OSCAR_TRY(engine::ReadTaskItems(*suite, arguments.data, 0).status());
  }
  ReportInputs inputs{arguments.engine, {}, arguments.text, arguments.code, arguments.suite, arguments.data, arguments.python, work};
  for (const std::string& method : arguments.methods) {  // METHOD=PROFILE is no calibrated method's name: what it names is there
    const bool fits = engine::IsCalibrated(method) && !fs::exists(engine::ModelCache::ProfilePath(engine->model_path(), method));
    inputs.methods.push_back({method, fits});
    if (fits) continue;
    // What cannot run, on this device above all, is known before minutes of work.
    OSCAR_ASSIGN_OR_RETURN(std::vector<engine::KvSetup> setups, SetUpMethods("eval report", *engine, {method}));
    auto cache = engine->NewCache(setups.front(), kPageTokens);
    if (!cache.ok()) return cache.status().WithContext("--kv " + method);
  }
  OSCAR_ASSIGN_OR_RETURN(const std::vector<ReportStep> steps, PlanReport(inputs, budget));
  double planned = 0;
  for (const ReportStep& step : steps) planned += step.planned_seconds;
  if (planned > 1.5 * budget.seconds) {
    Warn("eval report", fmt::format("--minutes {}: the least that can be measured takes about {:.0f} minutes here", arguments.minutes, planned / 60 + 0.5));
  }
  nlohmann::ordered_json plan{{"settings", SettingsOf(arguments)}, {"model", engine->identity().name}, {"version", std::string(kVersion)},
                              {"machine", Machine()}, {"redraw", RedrawCommand(arguments, work)}, {"tokens_per_second", budget.tokens_per_second}};
  plan["steps"] = StepsToJson(steps);
  return plan;
}

// Keeps a second report out of the folder for as long as it lives.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  // Makes the folder where there is none. kFailedPrecondition while another process has it.
  Status Take(const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return {StatusCode::kIoError, folder.string() + ": " + error.message()};
    descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) return {StatusCode::kIoError, folder.string() + ": " + std::strerror(errno)};
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return {};
    if (errno != EWOULDBLOCK) return {StatusCode::kIoError, folder.string() + ": " + std::strerror(errno)};
    return {StatusCode::kFailedPrecondition, folder.string() + ": another report is being measured there; wait for it, or give another --work folder"};
  }

 private:
  int descriptor_ = -1;
};

// The plan in the folder, or a new one.
Result<std::vector<ReportStep>> OpenPlan(const ReportArguments& arguments, const fs::path& work) {
  const fs::path path = work / "plan.json";
  if (!fs::exists(path)) {
    OSCAR_ASSIGN_OR_RETURN(const nlohmann::ordered_json made, MakePlan(arguments, work));
    OSCAR_TRY(io::WriteJsonFile(path, made));
  }
  OSCAR_ASSIGN_OR_RETURN(const nlohmann::json plan, io::ReadJsonFile(path));
  const nlohmann::json wanted = SettingsOf(arguments);
  for (const auto& [name, value] : wanted.items()) {
    const bool has_settings = plan.is_object() && plan.contains("settings") && plan["settings"].is_object();
    const nlohmann::json found = has_settings ? plan["settings"].value(name, nlohmann::json()) : nlohmann::json();
    if (found == value) continue;
    return Status(StatusCode::kFailedPrecondition, path.string() + ": holds a report with " + name + " " + found.dump() + ", this one has " + value.dump() +
                                                       "; give another --work folder");
  }
  auto steps = StepsFromJson(plan.value("steps", nlohmann::json::array()));
  if (!steps.ok()) return steps.status().WithContext(path.string());
  if (steps->empty()) return Status(StatusCode::kCorruptData, path.string() + ": has no steps");
  return steps;
}

Status DrawPage(const ReportArguments& arguments, const fs::path& work) {
  const fs::path said = work / "page.txt";
  OSCAR_ASSIGN_OR_RETURN(const int code, RunProcess({arguments.python, "-c", kReportPageProgram, work.string(), arguments.page}, said));
  if (code != 0) return {StatusCode::kInternal, "--python " + arguments.python + ": the page could not be drawn (exit code " + std::to_string(code) + "); the measurements are in " + work.string()};
  if (fs::file_size(said) > 0) Warn("eval report", "no figures on the page: " + arguments.python + " has no matplotlib");
  return {};
}

Status RunReport(const ReportArguments& arguments) {
  // What would fail at the end is refused before the measurements.
  const auto invalid = [](std::string why) { return Status(StatusCode::kInvalidArgument, std::move(why)); };
  constexpr double kMostMinutes = 1e5;
  constexpr int kLeastWindow = 512;
  if (!(arguments.minutes > 0 && arguments.minutes <= kMostMinutes)) {
    return invalid(fmt::format("--minutes {}: must be positive and at most {:.0f}", arguments.minutes, kMostMinutes));
  }
  if (arguments.window != 0 && arguments.window < kLeastWindow) return invalid(fmt::format("--window {}: must be at least {}", arguments.window, kLeastWindow));
  if (arguments.suite.empty() != arguments.data.empty()) return invalid("--suite and --data: one needs the other");
  if (arguments.page.empty()) return invalid("-o: the name of the page is empty");
  if (fs::is_directory(arguments.page)) return invalid("-o " + arguments.page + ": is a folder");
  const fs::path parent = fs::path(arguments.page).parent_path();
  if (!parent.empty() && !fs::is_directory(parent)) return invalid("-o " + arguments.page + ": there is no folder " + parent.string());
  const fs::path work = arguments.work.empty() ? fs::path(arguments.page).replace_extension(".work") : fs::path(arguments.work);
  if (fs::exists(work) && !fs::is_directory(work)) return invalid("--work " + work.string() + ": is a file");
  CatchInterrupts();
  OSCAR_TRY(CheckPython(arguments.python));
  FolderLock lock;
  OSCAR_TRY(lock.Take(work));
  const Result<std::vector<ReportStep>> steps = OpenPlan(arguments, work);
  if (!steps.ok()) {
    std::error_code ignored;
    fs::remove(work, ignored);  // only when it is empty, as we made it
    return steps.status();
  }
  OSCAR_TRY(RunSteps(*steps, work, arguments.quiet));
  OSCAR_TRY(DrawPage(arguments, work));
  fmt::print("{}\n", arguments.page);
  return {};
}

}  // namespace

void AddEvalReportCommand(CLI::App& eval, int& exit_code) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = eval.add_subcommand("report", "All evaluations of one model within a budget, as one HTML page; an interrupted one goes on");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  command->add_option("--kv", arguments->methods, "Methods, each METHOD or METHOD=PROFILE; calibrated ones without a profile, named or beside the model, are calibrated into the work folder")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("METHOD,...");
  AddWindowOptions(*command, arguments->engine);
  command->add_option("--minutes", arguments->minutes, "Budget: sizes of the steps follow from it and a measured speed")->capture_default_str()->type_name("N");
  command->add_option("--text", arguments->text, "Prose: file or folder (default: the text built into the program)")->type_name("PATH");
  command->add_option("--code", arguments->code, "Code, for a second KL: file or folder")->type_name("PATH");
  command->add_option("--window", arguments->window, "Tokens per window of KL and of calibration (default: what the budget has, up to 2048)")->type_name("TOKENS");
  command->add_option("--suite", arguments->suite, "Task suite to answer, as for eval tasks (default: none)")->type_name("NAME");
  command->add_option("--data", arguments->data, "The suite's records")->type_name("FILE");
  command->add_option("-o,--output", arguments->page, "The page")->capture_default_str()->type_name("FILE");
  command->add_option("--work", arguments->work, "Folder of the measurements (default: beside the page, PAGE.work)")->type_name("FOLDER");
  command->add_option("--python", arguments->python, "Draws the page, with matplotlib")->capture_default_str()->type_name("PROGRAM");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, &exit_code] {
    const Status status = RunReport(*arguments);
    exit_code = status.ok() ? 0 : Fail("eval report", status);
  });
}

}  // namespace oscar::tools
