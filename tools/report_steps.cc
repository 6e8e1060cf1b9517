#include "tools/report_steps.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/report/quantity.h"
#include "src/io/json_file.h"
#include "tools/command_line.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

bool IsDone(const ReportStep& step, const std::filesystem::path& folder) {
  if (step.result.empty()) return std::filesystem::exists(step.output);
  return std::filesystem::exists(folder / step.result) && io::ReadJsonFile(folder / step.result).ok();  // a damaged one is measured again
}

Status RunStep(const ReportStep& step, const std::filesystem::path& folder) {
  std::vector<std::string> argv{"/proc/self/exe"};
  argv.insert(argv.end(), step.arguments.begin(), step.arguments.end());
  const std::filesystem::path part = step.result.empty() ? folder / (step.name + ".txt") : folder / (step.result + ".part");
  OSCAR_ASSIGN_OR_RETURN(const int code, RunProcess(argv, part));
  const Status interrupted(StatusCode::kCancelled, "interrupted; the same command goes on from here");
  if (code == kExitInterrupted || (code != 0 && Interrupted())) return interrupted;
  if (code != 0) return {StatusCode::kInternal, fmt::format("{} ended with exit code {}: {}", step.title, code, CommandLine(step.arguments))};
  if (!step.result.empty()) std::filesystem::rename(part, folder / step.result);
  return Interrupted() ? interrupted : Status();
}

}  // namespace

std::string CommandLine(const std::vector<std::string>& arguments) {
  std::string line = "oscar";
  for (const std::string& word : arguments) {
    const bool plain = !word.empty() && word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%") == std::string::npos;
    line += ' ';
    if (plain) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

nlohmann::ordered_json StepsToJson(const std::vector<ReportStep>& steps) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ReportStep& step : steps) {
    list.push_back({{"name", step.name}, {"title", step.title}, {"arguments", step.arguments}, {"command", CommandLine(step.arguments)},
                    {"result", step.result}, {"output", step.output}, {"planned_seconds", step.planned_seconds}});
  }
  return list;
}

Result<std::vector<ReportStep>> StepsFromJson(const nlohmann::json& value) {
  std::vector<ReportStep> steps;
  try {
    for (const nlohmann::json& entry : value) {
      steps.push_back({entry.at("name"), entry.at("title"), entry.at("arguments"), entry.at("result"), entry.at("output"), entry.at("planned_seconds")});
    }
  } catch (const nlohmann::json::exception&) {
    return {StatusCode::kCorruptData, "step " + std::to_string(steps.size()) + " lacks a field"};
  }
  return steps;
}

Status RunSteps(const std::vector<ReportStep>& steps, const std::filesystem::path& folder, bool quiet) {
  double left = 0;
  for (const ReportStep& step : steps) left += IsDone(step, folder) ? 0 : step.planned_seconds;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (IsDone(steps[i], folder)) continue;
    if (!quiet) fmt::print(stderr, "[{}/{}] {}; about {} left in all\n", i + 1, steps.size(), steps[i].title, engine::FormatDuration(left));
    OSCAR_TRY(RunStep(steps[i], folder));
    left -= steps[i].planned_seconds;
  }
  return {};
}

Result<int> RunProcess(const std::vector<std::string>& argv, const std::filesystem::path& output) {
  std::vector<std::string> words = argv;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int file = output.empty() ? -1 : open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (!output.empty() && file < 0) return Status(StatusCode::kIoError, output.string() + ": " + std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // or it would go on writing into a file that the next run writes, too
    if (file >= 0) dup2(file, STDOUT_FILENO);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  if (file >= 0) close(file);
  if (child < 0) return Status(StatusCode::kResourceExhausted, std::string("no process could be started: ") + std::strerror(errno));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    if (Interrupted()) kill(child, SIGTERM);
  }
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  return WEXITSTATUS(status);
}

Status CheckPython(const std::string& python) {
  OSCAR_ASSIGN_OR_RETURN(const int code, RunProcess({python, "-c", ""}, {}));
  if (code == 0) return {};
  return {StatusCode::kNotFound, "--python " + python + (code == 127 ? ": no such program" : ": is not a Python")};
}

}  // namespace oscar::tools
