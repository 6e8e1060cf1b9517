#include "src/engine/evaluate/live_code.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace oscar::engine {
namespace {

using nlohmann::json;

// [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}] as releases pack it.
constexpr char kPacked[] = "eJxrYJlqxwABPVbR1UqZeQWlJUpWCkqGCkYxeUo6Ckr5pSVQIWOIQElqcUlJZUEqSKi4JCUzT6k2dooeALEqFJ0=";
// An object whose pickle calls a function.
constexpr char kCall[] = "eJxrYJkqzwABPawF+cWZFVN62Iori0tSc6dMntLDUlJUmjqldUrQFD0AA2gOlA==";

json Case(const char* input, const char* output, const char* kind) { return {{"input", input}, {"output", output}, {"testtype", kind}}; }

json StdinRecord() {
  return {{"question_id", "sum_1"}, {"question_content", "Print the sum."}, {"starter_code", ""}, {"metadata", "{}"},
          {"public_test_cases", json::array({Case("2 2\n", "4\n", "stdin")}).dump()}, {"private_test_cases", kPacked}};
}

json FunctionRecord() {
  return {{"question_id", "pairs_1"}, {"question_content", "Return both."}, {"starter_code", "class Solution:\n    def both(self, a: int, b: List[int]) -> List[float]:\n        "},
          {"metadata", R"({"func_name": "both"})"},
          {"public_test_cases", json::array({Case("1\n[2, 3]", "[1, 5]", "functional"), Case("2\n[]", "[2, 0]", "functional")}).dump()},
          {"private_test_cases", "[]"}};
}

TEST(LiveCodeBenchItem, BothKindsOfProblemBecomeAPrompt) {
  const auto program = LiveCodeBenchItem(StdinRecord());
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->id, "sum_1");
  EXPECT_EQ(program->entry_point, "");
  EXPECT_NE(program->prompt.find("standard input"), std::string::npos);
  const auto function = LiveCodeBenchItem(FunctionRecord());
  ASSERT_TRUE(function.ok()) << function.status().message();
  EXPECT_EQ(function->entry_point, "both");
  EXPECT_NE(function->prompt.find("def both(self"), std::string::npos);
  EXPECT_EQ(function->prompt.find("standard input"), std::string::npos);
}

TEST(LiveCodeBenchItem, WhatDoesNotFitIsRefusedByField) {
  const auto refused = [](json record, const char* field, json value, StatusCode code) {
    record[field] = std::move(value);
    const auto item = LiveCodeBenchItem(record);
    ASSERT_FALSE(item.ok()) << field;
    EXPECT_EQ(item.status().code(), code) << item.status().message();
    EXPECT_NE(item.status().message().find(field), std::string::npos) << item.status().message();
  };
  refused(StdinRecord(), "question_content", nullptr, StatusCode::kCorruptData);
  refused(StdinRecord(), "metadata", "{", StatusCode::kCorruptData);
  refused(StdinRecord(), "public_test_cases", "[1]", StatusCode::kCorruptData);
  refused(StdinRecord(), "public_test_cases", R"([{"input":"1","output":"2","testtype":"shell"}])", StatusCode::kCorruptData);
  refused(StdinRecord(), "private_test_cases", "no base64!", StatusCode::kCorruptData);
  refused(StdinRecord(), "private_test_cases", kCall, StatusCode::kCorruptData);  // two texts before anything is called
  refused(FunctionRecord(), "metadata", "{}", StatusCode::kCorruptData);
  json empty = FunctionRecord();
  empty["public_test_cases"] = "[]";
  EXPECT_FALSE(LiveCodeBenchItem(empty).ok());
}

class GradeLiveCodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto probe = GradeLiveCode(*LiveCodeBenchItem(StdinRecord()), "print(sum(map(int, input().split())))", "python3");
    if (!probe.ok() && probe.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << probe.status().message();
    ASSERT_TRUE(probe.ok()) << probe.status().message();
    EXPECT_TRUE(probe->correct) << probe->reason;
  }
  static Grade Of(const json& record, const std::string& code) {
    const auto item = LiveCodeBenchItem(record);
    EXPECT_TRUE(item.ok());
    const auto grade = GradeLiveCode(*item, code, "python3");
    EXPECT_TRUE(grade.ok()) << grade.status().message();
    return grade.ok() ? *grade : Grade{};
  }
};

TEST_F(GradeLiveCodeTest, ProgramsAreJudgedByWhatTheyPrint) {
  EXPECT_TRUE(Of(StdinRecord(), "if __name__ == '__main__':\n    print(' ', sum(map(int, sys.stdin.read().split())))").correct);
  EXPECT_TRUE(Of(StdinRecord(), "print(sum(map(Decimal, input().split())))\nfrom decimal import Decimal").reason.find("NameError") != std::string::npos);
  EXPECT_TRUE(Of(StdinRecord(), "print(float(sum(map(int, input().split()))))").correct);  // 4.0 is 4
  EXPECT_EQ(Of(StdinRecord(), "print(4)").reason, "case 2: wrong answer");                 // the packed one
  EXPECT_EQ(Of(StdinRecord(), "print(4, 4)").reason, "case 1: wrong answer");
  EXPECT_EQ(Of(StdinRecord(), "pass").reason, "case 1: wrong answer");
  EXPECT_NE(Of(StdinRecord(), "print(1 // 0)").reason.find("ZeroDivisionError"), std::string::npos);
  EXPECT_EQ(Of(StdinRecord(), "sys.exit(3)").reason, "case 1: exit code 3");
}

TEST_F(GradeLiveCodeTest, FunctionsAreJudgedByWhatTheyReturn) {
  const auto solution = [](const char* body) { return std::string("class Solution:\n    def both(self, a: int, b: List[int]) -> List[float]:\n        ") + body; };
  EXPECT_TRUE(Of(FunctionRecord(), solution("return [a, sum(b)]")).correct);
  EXPECT_TRUE(Of(FunctionRecord(), solution("print('noise')\n        return (float(a), sum(b))")).correct);
  EXPECT_TRUE(Of(FunctionRecord(), "def both(a, b):\n    return [a, reduce(add, b, 0)]").correct);
  EXPECT_EQ(Of(FunctionRecord(), solution("return [a, 5]")).reason, "case 2: wrong answer");
  EXPECT_NE(Of(FunctionRecord(), solution("return {a, 5}")).reason.find("TypeError"), std::string::npos);
  EXPECT_NE(Of(FunctionRecord(), "def other(a, b):\n    return [a, 5]").reason.find("KeyError"), std::string::npos);
  EXPECT_EQ(Of(FunctionRecord(), solution("sys.exit(0)")).reason, "case 1: ended early");
}

}  // namespace
}  // namespace oscar::engine
