#include "src/engine/evaluate/task_suite.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/live_code.h"
#include "src/engine/evaluate/sandbox.h"
#include "src/engine/evaluate/seeded_draw.h"
#include "src/io/jsonl_file.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<TaskSuite, std::string_view>, 5> kNames = {{{TaskSuite::kHumanEval, "humaneval"},
                                                                           {TaskSuite::kGpqa, "gpqa"},
                                                                           {TaskSuite::kAime25, "aime25"},
                                                                           {TaskSuite::kMath500, "math500"},
                                                                           {TaskSuite::kLiveCodeBench, "livecodebench"}}};

// A field as text; numbers are taken as they are written (AIME answers).
Result<std::string> Field(const json& record, std::initializer_list<const char*> names) {
  std::string listed;
  for (const char* name : names) {
    if (const auto found = record.find(name); found != record.end()) {
      if (found->is_string()) return found->get<std::string>();
      if (found->is_number()) return found->dump();
      return Status(StatusCode::kCorruptData, "field \"" + std::string(name) + "\" is no text");
    }
    listed += (listed.empty() ? "\"" : "\" or \"") + std::string(name);
  }
  return Status(StatusCode::kCorruptData, "no field " + listed + "\"");
}

Result<TaskItem> HumanEvalItem(const json& record) {
  TaskItem item;
  OSCAR_ASSIGN_OR_RETURN(item.id, Field(record, {"task_id"}));
  OSCAR_ASSIGN_OR_RETURN(item.code_prefix, Field(record, {"prompt"}));
  OSCAR_ASSIGN_OR_RETURN(item.entry_point, Field(record, {"entry_point"}));
  OSCAR_ASSIGN_OR_RETURN(item.test, Field(record, {"test"}));
  item.prompt = "Complete this Python function. Reply with the whole function and its imports in one Python code block.\n\n```python\n" +
                item.code_prefix + "\n```";
  item.continuation = item.code_prefix;
  item.stop = {"\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\n#", "\n```"};
  return item;
}

Result<TaskItem> GpqaItem(const json& record, uint64_t seed) {
  TaskItem item;
  OSCAR_ASSIGN_OR_RETURN(const std::string question, Field(record, {"Question", "question"}));
  std::vector<std::string> choices(4);
  OSCAR_ASSIGN_OR_RETURN(choices[0], Field(record, {"Correct Answer"}));
  OSCAR_ASSIGN_OR_RETURN(choices[1], Field(record, {"Incorrect Answer 1"}));
  OSCAR_ASSIGN_OR_RETURN(choices[2], Field(record, {"Incorrect Answer 2"}));
  OSCAR_ASSIGN_OR_RETURN(choices[3], Field(record, {"Incorrect Answer 3"}));
  std::vector<int> order = {0, 1, 2, 3};
  SeededDraw(seed).Shuffle(order);
  item.prompt = question + "\n";
  for (int i = 0; i < 4; ++i) {
    const char letter = static_cast<char>('A' + i);
    item.prompt += "\n" + std::string(1, letter) + ") " + choices[static_cast<size_t>(order[static_cast<size_t>(i)])];
    if (order[static_cast<size_t>(i)] == 0) item.gold = letter;
  }
  item.prompt += "\n\nReason step by step. End with a line \"Answer: X\", where X is A, B, C or D.";
  return item;
}

Result<TaskItem> MathsItem(const json& record) {
  TaskItem item;
  OSCAR_ASSIGN_OR_RETURN(const std::string problem, Field(record, {"problem", "question"}));
  OSCAR_ASSIGN_OR_RETURN(item.gold, Field(record, {"answer"}));
  item.prompt = problem + "\n\nReason step by step, and put the final answer into \\boxed{}.";
  return item;
}

Result<TaskItem> ItemOf(TaskSuite suite, const json& record, uint64_t seed) {
  switch (suite) {
    case TaskSuite::kHumanEval: return HumanEvalItem(record);
    case TaskSuite::kGpqa: return GpqaItem(record, seed);
    case TaskSuite::kAime25:
    case TaskSuite::kMath500: return MathsItem(record);
    case TaskSuite::kLiveCodeBench: return LiveCodeBenchItem(record);
  }
  return {StatusCode::kInternal, "no such suite"};
}

// Contents of the fenced blocks; one that the text does not close runs to its end.
std::vector<std::string_view> FencedBlocks(std::string_view text) {
  std::vector<std::string_view> blocks;
  for (size_t open = text.find("```"); open != std::string_view::npos;) {
    const size_t begin = text.find('\n', open);
    if (begin == std::string_view::npos) break;
    const size_t close = text.find("```", begin + 1);
    blocks.push_back(text.substr(begin + 1, close == std::string_view::npos ? close : close - begin - 1));
    if (close == std::string_view::npos) break;
    open = text.find("```", close + 3);
  }
  return blocks;
}

std::optional<std::string> ExtractCode(const TaskItem& item, std::string_view text) {
  const std::vector<std::string_view> blocks = FencedBlocks(text);
  const std::string definition = "def " + item.entry_point;
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (!item.entry_point.empty() && block->find(definition) != std::string_view::npos) return std::string(*block);
  }
  if (!blocks.empty()) return std::string(blocks.back());
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return std::nullopt;
  return std::string(text);
}

std::optional<std::string> LastBoxed(std::string_view text) {
  constexpr std::string_view kBoxed = "\\boxed{";
  const size_t at = text.rfind(kBoxed);
  if (at == std::string_view::npos) return std::nullopt;
  int depth = 1;
  for (size_t i = at + kBoxed.size(); i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return std::string(text.substr(at + kBoxed.size(), i - at - kBoxed.size()));
  }
  return std::nullopt;
}

std::optional<std::string> ExtractLetter(std::string_view text) {
  const auto letter_in = [](std::string_view part) -> std::optional<std::string> {
    const size_t at = part.find_first_not_of(" *:$({\\boxedtext");
    if (at == std::string_view::npos || part[at] < 'A' || part[at] > 'D') return std::nullopt;
    if (at + 1 < part.size() && std::isalnum(static_cast<unsigned char>(part[at + 1]))) return std::nullopt;
    return std::string(1, part[at]);
  };
  for (size_t at = text.rfind("nswer:"); at != std::string_view::npos; at = at == 0 ? std::string_view::npos : text.rfind("nswer:", at - 1)) {
    if (auto letter = letter_in(text.substr(at + 6))) return letter;
  }
  if (const auto boxed = LastBoxed(text)) return letter_in(*boxed);
  return std::nullopt;
}

std::string WithoutSpaces(std::string_view text) {
  std::string compact;
  for (const char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c))) compact += c;
  }
  return compact;
}

// The whole program with a word at its end that it cannot know: code that leaves early has not passed.
Result<Grade> GradeCode(const TaskItem& item, const std::string& code, const std::string& python) {
  std::random_device device;
  const std::string token = "passed-" + std::to_string(device()) + std::to_string(device());
  const std::string program = item.code_prefix + (code.find("def " + item.entry_point) != std::string::npos ? "\n" : "") + code + "\n\n" +
                              item.test + "\ncheck(" + item.entry_point + ")\nprint('\\n" + token + "')\n";
  OSCAR_ASSIGN_OR_RETURN(const SandboxOutcome outcome, RunSandboxed({python, "-I", "-"}, program, {}));
  using End = SandboxOutcome::End;
  if (outcome.end == End::kTimedOut) return Grade{false, "timed out"};
  if (outcome.end == End::kOutputTooLong) return Grade{false, "printed too much"};
  if (outcome.end == End::kSignalled) return Grade{false, "signal " + std::to_string(outcome.code)};
  if (outcome.code == 0 && outcome.output.ends_with("\n" + token + "\n")) return Grade{true, ""};
  // The last line of a Python traceback names the exception.
  std::string last = outcome.error_output.substr(0, outcome.error_output.find_last_not_of('\n') + 1);
  last = last.substr(last.rfind('\n') == std::string::npos ? 0 : last.rfind('\n') + 1);
  return Grade{false, last.empty() ? "ended early" : last.substr(0, 200)};
}

constexpr std::string_view kMathsProgram = R"(
import json, sys
gold, answer = json.load(sys.stdin)
try:
    from math_verify import parse, verify
except ImportError:
    print("missing")
    sys.exit(0)
def read(text):
    return parse("$" + text + "$", parsing_timeout=None)
print("equal" if verify(read(gold), read(answer), timeout_seconds=None) else "different")
)";

Result<Grade> GradeMaths(const TaskItem& item, const std::string& answer, const std::string& python) {
  if (WithoutSpaces(item.gold) == WithoutSpaces(answer)) return Grade{true, ""};
  const std::string input = json::array({item.gold, answer}).dump(-1, ' ', true, json::error_handler_t::replace);
  OSCAR_ASSIGN_OR_RETURN(const SandboxOutcome outcome,
                         RunSandboxed({python, "-I", "-c", std::string(kMathsProgram)}, input, {.wall_seconds = 30}));
  if (outcome.output == "equal\n") return Grade{true, ""};
  if (outcome.output == "missing\n") {
    return Status(StatusCode::kFailedPrecondition,
                  "math500 compares expressions with the Python package math-verify, which " + python + " lacks (pip install math-verify)");
  }
  return Grade{false, "expected " + item.gold};
}

Grade GradeInteger(const TaskItem& item, const std::string& answer) {
  const auto digits = [](std::string text) {
    text = WithoutSpaces(text);
    text.erase(0, std::min(text.find_first_not_of('0'), text.empty() ? 0 : text.size() - 1));
    return text;
  };
  if (digits(answer) == digits(item.gold)) return {true, ""};
  return {false, "expected " + item.gold};
}

}  // namespace

std::string_view TaskSuiteName(TaskSuite suite) { return kNames[static_cast<size_t>(suite)].second; }

Result<TaskSuite> ParseTaskSuite(std::string_view text) {
  std::string names;
  for (const auto& [suite, name] : kNames) {
    if (name == text) return suite;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return Status(StatusCode::kInvalidArgument, "no task suite \"" + std::string(text) + "\"; there are " + names);
}

Result<std::vector<TaskItem>> ReadTaskItems(TaskSuite suite, const std::filesystem::path& path, uint64_t seed) {
  OSCAR_ASSIGN_OR_RETURN(const std::vector<json> records, io::ReadJsonLines(path));
  if (records.empty()) return Status(StatusCode::kCorruptData, path.string() + ": no records");
  std::vector<TaskItem> items;
  for (size_t i = 0; i < records.size(); ++i) {
    auto item = ItemOf(suite, records[i], seed + i);
    if (!item.ok()) {
      return item.status().WithContext(path.string() + ": record " + std::to_string(i + 1) + " (" + std::string(TaskSuiteName(suite)) + ")");
    }
    if (item->id.empty()) item->id = std::string(TaskSuiteName(suite)) + "/" + std::to_string(i + 1);
    items.push_back(*std::move(item));
  }
  return items;
}

std::optional<std::string_view> AfterThinking(std::string_view text) {
  constexpr std::string_view kEnd = "</think>";
  if (const size_t end = text.rfind(kEnd); end != std::string_view::npos) return text.substr(end + kEnd.size());
  if (text.find("<think>") != std::string_view::npos) return std::nullopt;
  return text;
}

std::optional<std::string> ExtractAnswer(TaskSuite suite, const TaskItem& item, std::string_view text) {
  const auto answer = AfterThinking(text);
  if (!answer) return std::nullopt;
  switch (suite) {
    case TaskSuite::kHumanEval:
    case TaskSuite::kLiveCodeBench: return ExtractCode(item, *answer);
    case TaskSuite::kGpqa: return ExtractLetter(*answer);
    case TaskSuite::kAime25:
    case TaskSuite::kMath500: return LastBoxed(*answer);
  }
  return std::nullopt;
}

Result<Grade> GradeAnswer(TaskSuite suite, const TaskItem& item, const std::optional<std::string>& answer, const std::string& python) {
  if (!answer) return Grade{false, "no answer"};
  switch (suite) {
    case TaskSuite::kHumanEval: return GradeCode(item, *answer, python);
    case TaskSuite::kGpqa: return Grade{*answer == item.gold, *answer == item.gold ? "" : "expected " + item.gold};
    case TaskSuite::kAime25: return GradeInteger(item, *answer);
    case TaskSuite::kMath500: return GradeMaths(item, *answer, python);
    case TaskSuite::kLiveCodeBench: return GradeLiveCode(item, *answer, python);
  }
  return Grade{};
}

}  // namespace oscar::engine
