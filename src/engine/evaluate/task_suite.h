// The paper's accuracy benchmarks from local files in their published layouts: HumanEval, GPQA, AIME25, MATH500 and LiveCodeBench. A suite turns
// a record into a prompt, finds the answer in what the model wrote, and grades it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

enum class TaskSuite : uint8_t { kHumanEval, kGpqa, kAime25, kMath500, kLiveCodeBench };

// "humaneval", "gpqa", "aime25", "math500", "livecodebench".
std::string_view TaskSuiteName(TaskSuite suite);
// kInvalidArgument naming the text and listing what exists.
Result<TaskSuite> ParseTaskSuite(std::string_view text);

struct TaskItem {
  std::string id;             // the record's own, or suite/line number
  std::string prompt;         // the user's message
  std::string continuation;   // what a model without chat template is given instead; empty: prompt
  std::vector<std::string> stop;  // of the continuation
  std::string gold;           // "B", "70", a LaTeX expression; empty for code
  // Code: program = chosen code + test; passes when it ends by itself.
  std::string code_prefix, entry_point, test;
  std::vector<std::string> test_cases;  // LiveCodeBench: lists of cases as they stand in the record
};

// Records of a JSONL file, optionally compressed with gzip. kNotFound, kIoError, or kCorruptData naming file, line and field.
// seed: order of the choices of a GPQA item (the correct one is first in the file).
Result<std::vector<TaskItem>> ReadTaskItems(TaskSuite suite, const std::filesystem::path& path, uint64_t seed);

// What follows the last "</think>", or the whole text when the model did not think; nothing when the thought has no end.
std::optional<std::string_view> AfterThinking(std::string_view text);

// The answer in a text, or nothing: the code of the last fenced block, that defines the entry point if there is one; the letter behind the last
// "Answer:" or in the last \boxed{}; the content of the last \boxed{}.
std::optional<std::string> ExtractAnswer(TaskSuite suite, const TaskItem& item, std::string_view text);

struct Grade {
  bool correct = false;
  std::string reason;         // why not, in a few words: "timed out", "no answer", "expected B"
};
// Code and symbolic equality (SymPy, with what latex it reads) run in the sandbox (sandbox.h) under `python`; errors as there.
Result<Grade> GradeAnswer(TaskSuite suite, const TaskItem& item, const std::optional<std::string>& answer, const std::string& python);

}  // namespace oscar::engine
