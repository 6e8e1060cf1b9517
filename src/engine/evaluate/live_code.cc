#include "src/engine/evaluate/live_code.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/engine/evaluate/sandbox.h"
#include "src/io/json_file.h"
#include "src/io/packed_text.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

constexpr size_t kMostCaseBytes = size_t{1} << 30;
constexpr double kCaseSeconds = 6;  // of the published runner

struct TestCase {
  std::string input, output;
  bool is_function = false;
};

Result<std::string> TextField(const json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end() || !found->is_string()) {
    return {StatusCode::kCorruptData, "field \"" + std::string(name) + (found == record.end() ? "\" is missing" : "\" is no text")};
  }
  return found->get<std::string>();
}

Result<std::vector<TestCase>> ReadCases(const std::string& text) {
  OSCAR_ASSIGN_OR_RETURN(const json list, io::ParseJson(text));
  if (!list.is_array()) return {StatusCode::kCorruptData, "is no list of test cases"};
  std::vector<TestCase> cases;
  for (const json& entry : list) {
    if (!entry.is_object()) return {StatusCode::kCorruptData, "holds a test case that is no object"};
    TestCase made;
    OSCAR_ASSIGN_OR_RETURN(made.input, TextField(entry, "input"));
    OSCAR_ASSIGN_OR_RETURN(made.output, TextField(entry, "output"));
    OSCAR_ASSIGN_OR_RETURN(const std::string kind, TextField(entry, "testtype"));
    if (kind != "stdin" && kind != "functional") return {StatusCode::kCorruptData, "holds a test case of the type \"" + kind + "\""};
    made.is_function = kind == "functional";
    cases.push_back(std::move(made));
  }
  return cases;
}

// Cases as JSON text, or packed.
Result<std::vector<TestCase>> UnpackCases(const std::string& field) {
  if (field.starts_with('[')) return ReadCases(field);
  OSCAR_ASSIGN_OR_RETURN(const std::string text, io::UnpackText(field, kMostCaseBytes));
  return ReadCases(text);
}

// What the published runner imports before a solution: answers written for its sites rely on it.
constexpr std::string_view kPrelude = R"(from bisect import *
from collections import *
from copy import *
from datetime import *
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import *
from random import *
from re import *
from statistics import *
from string import *
from typing import *
from builtins import *
import bisect, collections, copy, datetime, functools, heapq, io, itertools, json, math, operator, random, re, statistics, string, sys
sys.setrecursionlimit(50000)
)";

// Calls the function with arguments from standard input; what it gives follows a word on a line of its own.
std::string FunctionProgram(const std::string& code, const std::string& name, const std::string& word) {
  const std::string quoted = json(name).dump();
  return std::string(kPrelude) + code +
         "\n\nimport json as _json, sys as _sys\n"
         "_arguments = [_json.loads(_line) for _line in _sys.stdin.read().split('\\n')]\n"
         "_function = getattr(Solution(), " + quoted + ") if 'Solution' in globals() else globals()[" + quoted + "]\n"
         "_result = _json.dumps(_function(*_arguments))\n"
         "print('\\n" + word + "\\n' + _result)\n";
}

// Two texts, by lines of numbers or as JSON values; prints what it finds.
constexpr std::string_view kCompareProgram = R"(
import json, sys
from decimal import Decimal
kind, expected, actual = json.load(sys.stdin)
def lines(text):
    return [line.strip() for line in text.strip().split("\n")]
def same_line(a, b):
    if a == b:
        return True
    try:
        return [Decimal(word) for word in a.split()] == [Decimal(word) for word in b.split()]
    except ArithmeticError:
        return False
if kind == "value":
    same = json.loads(expected) == json.loads(actual)
else:
    a, b = lines(expected), lines(actual)
    same = len(a) == len(b) and all(map(same_line, a, b))
print("equal" if same else "different")
)";

Result<bool> AreEqual(bool is_value, const std::string& expected, const std::string& actual, const std::string& python) {
  if (expected == actual) return true;
  const std::string input = json::array({is_value ? "value" : "lines", expected, actual}).dump(-1, ' ', true, json::error_handler_t::replace);
  OSCAR_ASSIGN_OR_RETURN(const SandboxOutcome outcome, RunSandboxed({python, "-I", "-c", std::string(kCompareProgram)}, input, {}));
  return outcome.output == "equal\n";
}

std::string LastLine(std::string_view text) {
  text = text.substr(0, text.find_last_not_of('\n') + 1);
  const size_t before = text.rfind('\n');
  return std::string(text.substr(before == std::string_view::npos ? 0 : before + 1).substr(0, 200));
}

// Empty when the case passes, else why not.
Result<std::string> RunCase(const TestCase& test, const TaskItem& item, const std::string& code, const std::string& python) {
  std::random_device device;
  const std::string word = "result-" + std::to_string(device()) + std::to_string(device());
  const std::string program = test.is_function ? FunctionProgram(code, item.entry_point, word) : std::string(kPrelude) + code + "\n";
  SandboxLimits limits;
  limits.wall_seconds = kCaseSeconds;
  limits.memory_bytes = uint64_t{4} << 30;
  limits.output_bytes = std::max<uint64_t>(limits.output_bytes, 2 * test.output.size());
  OSCAR_ASSIGN_OR_RETURN(const SandboxOutcome outcome, RunSandboxed({python, "-I", "-c", program}, test.input, limits));
  using End = SandboxOutcome::End;
  if (outcome.end == End::kTimedOut) return std::string("timed out");
  if (outcome.end == End::kOutputTooLong) return std::string("printed too much");
  if (outcome.end == End::kSignalled) return "signal " + std::to_string(outcome.code);
  if (outcome.code != 0) return outcome.error_output.empty() ? "exit code " + std::to_string(outcome.code) : LastLine(outcome.error_output);
  std::string actual = outcome.output;
  if (test.is_function) {
    const std::string mark = "\n" + word + "\n";
    const size_t at = actual.rfind(mark);
    if (at == std::string::npos) return std::string("ended early");
    actual.erase(0, at + mark.size());
  }
  OSCAR_ASSIGN_OR_RETURN(const bool equal, AreEqual(test.is_function, test.output, actual, python));
  return std::string(equal ? "" : "wrong answer");
}

}  // namespace

Result<TaskItem> LiveCodeBenchItem(const json& record) {
  TaskItem item;
  OSCAR_ASSIGN_OR_RETURN(item.id, TextField(record, "question_id"));
  OSCAR_ASSIGN_OR_RETURN(const std::string question, TextField(record, "question_content"));
  OSCAR_ASSIGN_OR_RETURN(const std::string starter, TextField(record, "starter_code"));
  OSCAR_ASSIGN_OR_RETURN(const std::string metadata_text, TextField(record, "metadata"));
  auto metadata = io::ParseJson(metadata_text);
  if (!metadata.ok()) return metadata.status().WithContext("field \"metadata\"");
  bool needs_function = false;
  size_t num_cases = 0;
  for (const char* field : {"public_test_cases", "private_test_cases"}) {
    OSCAR_ASSIGN_OR_RETURN(std::string cases, TextField(record, field));
    const auto read = UnpackCases(cases);
    if (!read.ok()) return read.status().WithContext("field \"" + std::string(field) + "\"");
    num_cases += read->size();
    for (const TestCase& test : *read) needs_function = needs_function || test.is_function;
    item.test_cases.push_back(std::move(cases));
  }
  if (num_cases == 0) return {StatusCode::kCorruptData, "fields \"public_test_cases\" and \"private_test_cases\" hold no test case"};
  if (needs_function) {
    if (!metadata->is_object()) return {StatusCode::kCorruptData, "field \"metadata\" is no object"};
    auto name = TextField(*metadata, "func_name");
    if (!name.ok()) return name.status().WithContext("field \"metadata\"");
    item.entry_point = *std::move(name);
  }
  item.prompt = question + "\n\n";
  if (starter.find_first_not_of(" \r\n\t") != std::string::npos) {
    item.prompt += "Write the solution in Python, on the basis of this code:\n\n```python\n" + starter + "\n```\n\n";
  } else {
    item.prompt += "Write a Python program that reads standard input and writes the answer to standard output.\n\n";
  }
  item.prompt += "Reply with the whole program in one Python code block.";
  item.continuation = item.prompt + "\n\n```python\n";
  item.stop = {"\n```"};
  return item;
}

Result<Grade> GradeLiveCode(const TaskItem& item, const std::string& code, const std::string& python) {
  int number = 0;
  for (const std::string& field : item.test_cases) {
    OSCAR_ASSIGN_OR_RETURN(const std::vector<TestCase> cases, UnpackCases(field));
    for (const TestCase& test : cases) {
      ++number;
      OSCAR_ASSIGN_OR_RETURN(const std::string why, RunCase(test, item, code, python));
      if (!why.empty()) return Grade{false, "case " + std::to_string(number) + ": " + why};
    }
  }
  return Grade{true, ""};
}

}  // namespace oscar::engine
