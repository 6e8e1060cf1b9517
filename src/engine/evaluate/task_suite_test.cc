#include "src/engine/evaluate/task_suite.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

class TaskFile : public ::testing::Test {
 protected:
  static std::filesystem::path Write(const std::string& text) {
    const auto path = std::filesystem::path(::testing::TempDir()) / "items.jsonl";
    std::ofstream(path) << text;
    return path;
  }
};

constexpr char kHumanEval[] =
    R"({"task_id":"HumanEval/0","prompt":"def add(a, b):\n    \"\"\"Sum.\"\"\"\n","canonical_solution":"    return a + b\n","test":"def check(f):\n    assert f(1, 2) == 3\n","entry_point":"add"})";

TEST_F(TaskFile, EveryLayoutIsRead) {
  const auto code = ReadTaskItems(TaskSuite::kHumanEval, Write(kHumanEval), 0);
  ASSERT_TRUE(code.ok()) << code.status().message();
  EXPECT_EQ((*code)[0].id, "HumanEval/0");
  EXPECT_NE((*code)[0].prompt.find("def add(a, b)"), std::string::npos);
  const auto maths = ReadTaskItems(TaskSuite::kAime25, Write("{\"problem\":\"How many?\",\"answer\":\"070\"}\n{\"question\":\"And?\",\"answer\":5}\n"), 0);
  ASSERT_TRUE(maths.ok()) << maths.status().message();
  EXPECT_EQ((*maths)[0].gold, "070");
  EXPECT_EQ((*maths)[1].gold, "5");
  EXPECT_EQ((*maths)[1].id, "aime25/2");
}

TEST_F(TaskFile, TheLetterOfAGpqaItemPointsAtTheCorrectChoiceWhateverTheSeed) {
  const auto path = Write(R"({"Question":"Q?","Correct Answer":"right","Incorrect Answer 1":"w1","Incorrect Answer 2":"w2","Incorrect Answer 3":"w3"})");
  std::set<std::string> letters;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto items = ReadTaskItems(TaskSuite::kGpqa, path, seed);
    ASSERT_TRUE(items.ok()) << items.status().message();
    EXPECT_NE((*items)[0].prompt.find(items->front().gold + ") right"), std::string::npos) << items->front().prompt;
    letters.insert(items->front().gold);
  }
  EXPECT_EQ(letters.size(), 4u);
}

TEST_F(TaskFile, OtherRecordsAreRefusedByRecordAndField) {
  const std::pair<TaskSuite, const char*> cases[] = {{TaskSuite::kHumanEval, "{\"task_id\":\"x\"}"}, {TaskSuite::kGpqa, "{\"Question\":\"x\"}"},
                                                     {TaskSuite::kMath500, "{\"problem\":[1],\"answer\":\"2\"}"}, {TaskSuite::kAime25, "{\"problem\":\"x\"}"}};
  for (const auto& [suite, text] : cases) {
    const auto items = ReadTaskItems(suite, Write(text), 0);
    ASSERT_FALSE(items.ok()) << text;
    EXPECT_NE(items.status().message().find("record 1"), std::string::npos);
    EXPECT_NE(items.status().message().find("field"), std::string::npos) << items.status().message();
  }
  EXPECT_FALSE(ReadTaskItems(TaskSuite::kAime25, Write("\n"), 0).ok());
}

TEST(AfterThinking, LeavesTheAnswerAndRefusesAThoughtWithoutEnd) {
  EXPECT_EQ(AfterThinking("<think>hm</think>yes"), "yes");
  EXPECT_EQ(AfterThinking("hm</think>yes"), "yes");  // the template opened the thought
  EXPECT_EQ(AfterThinking("yes"), "yes");
  EXPECT_EQ(AfterThinking("<think>and on"), std::nullopt);
}

TEST(ExtractAnswer, FindsLettersBoxesAndCode) {
  const TaskItem item{.entry_point = "add"};
  const auto letter = [&](std::string_view text) { return ExtractAnswer(TaskSuite::kGpqa, item, text).value_or("-"); };
  EXPECT_EQ(letter("I think\nAnswer: B"), "B");
  EXPECT_EQ(letter("**Answer: (C)**"), "C");
  EXPECT_EQ(letter("Answer: A is tempting.\nAnswer: $\\boxed{D}$"), "D");
  EXPECT_EQ(letter("so \\boxed{A}"), "A");
  EXPECT_EQ(letter("Answer: Because"), "-");
  EXPECT_EQ(letter("no idea"), "-");
  const auto boxed = [&](std::string_view text) { return ExtractAnswer(TaskSuite::kMath500, item, text).value_or("-"); };
  EXPECT_EQ(boxed("\\boxed{1} no, \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(boxed("\\boxed{never closed"), "-");
  const auto code = [&](std::string_view text) { return ExtractAnswer(TaskSuite::kHumanEval, item, text).value_or("-"); };
  EXPECT_EQ(code("Here:\n```python\ndef add(a, b):\n  return a\n```\nand a test\n```python\nadd(1, 2)\n```"), "def add(a, b):\n  return a\n");
  EXPECT_EQ(code("```\ndef add(a, b): return b"), "def add(a, b): return b");
  EXPECT_EQ(code("    return a + b\n"), "    return a + b\n");
  EXPECT_EQ(code(" \n"), "-");
}

class GradeTest : public TaskFile {
 protected:
  void SetUp() override {
    const auto items = ReadTaskItems(TaskSuite::kHumanEval, Write(kHumanEval), 0);
    ASSERT_TRUE(items.ok());
    item_ = items->front();
    const auto probe = GradeAnswer(TaskSuite::kHumanEval, item_, "    return a + b\n", "python3");
    if (!probe.ok() && probe.status().code() == StatusCode::kUnsupported) GTEST_SKIP() << probe.status().message();
    ASSERT_TRUE(probe.ok()) << probe.status().message();
    EXPECT_TRUE(probe->correct) << probe->reason;
  }
  Grade Code(const std::string& code) {
    const auto grade = GradeAnswer(TaskSuite::kHumanEval, item_, code, "python3");
    EXPECT_TRUE(grade.ok()) << grade.status().message();
    return grade.ok() ? *grade : Grade{};
  }
  TaskItem item_;
};

TEST_F(GradeTest, CodePassesOnlyWhenItsTestRunsToTheEnd) {
  EXPECT_TRUE(Code("def add(a, b):\n    return a + b\n").correct);
  EXPECT_EQ(Code("def add(a, b):\n    return a - b\n").reason, "AssertionError");
  EXPECT_NE(Code("def add(a, b) return").reason.find("SyntaxError"), std::string::npos);
  EXPECT_FALSE(Code("import os\nos._exit(0)\n").correct);
  EXPECT_FALSE(Code("import sys\nprint('passed-1')\nsys.exit(0)\n").correct);
  EXPECT_NE(Code("def add(a, b):\n    open('/tmp/oscar_grade_test', 'w')\n    return a + b\n").reason.find("PermissionError"), std::string::npos);
}

TEST_F(GradeTest, IntegersAndLettersAreComparedAsSuch) {
  const auto grade = [](TaskSuite suite, const char* gold, std::optional<std::string> answer) {
    return GradeAnswer(suite, TaskItem{.gold = gold}, answer, "python3")->correct;
  };
  EXPECT_TRUE(grade(TaskSuite::kAime25, "070", "70"));
  EXPECT_TRUE(grade(TaskSuite::kAime25, "0", "000"));
  EXPECT_FALSE(grade(TaskSuite::kAime25, "70", "7"));
  EXPECT_FALSE(grade(TaskSuite::kAime25, "70", ""));
  EXPECT_TRUE(grade(TaskSuite::kGpqa, "B", "B"));
  EXPECT_FALSE(grade(TaskSuite::kGpqa, "B", "C"));
  EXPECT_FALSE(grade(TaskSuite::kGpqa, "B", std::nullopt));
}

TEST_F(GradeTest, ExpressionsAreComparedAsMathematicsAndNotAsText) {
  const auto grade = [](const char* gold, const char* answer) { return GradeAnswer(TaskSuite::kMath500, TaskItem{.gold = gold}, answer, "python3"); };
  EXPECT_TRUE(grade("\\frac{1}{2}", "\\frac {1} {2}")->correct);  // needs no package
  const auto probe = grade("\\frac{1}{2}", "0.5");
  if (!probe.ok() && probe.status().code() == StatusCode::kFailedPrecondition) GTEST_SKIP() << probe.status().message();
  ASSERT_TRUE(probe.ok()) << probe.status().message();
  EXPECT_TRUE(probe->correct);
  EXPECT_TRUE(grade("x^2+2x+1", "(x+1)^2")->correct);
  EXPECT_TRUE(grade("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)")->correct);
  EXPECT_FALSE(grade("\\frac{1}{2}", "\\frac{1}{3}")->correct);
  EXPECT_FALSE(grade("3", "\\text{nothing}")->correct);
}

}  // namespace
}  // namespace oscar::engine
