#include "src/engine/evaluate/retrieval_tasks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "gtest/gtest.h"
#include "src/engine/evaluate/seeded_draw.h"

namespace oscar::engine {
namespace {

RetrievalSources Sources() {
  RetrievalSources sources;
  for (int i = 0; i < 50; ++i) sources.sentences.push_back("Sentence number " + std::to_string(i) + " says little.");
  for (int i = 0; i < 30; ++i) sources.questions1.documents.push_back("Document text " + std::to_string(i));
  sources.questions1.questions.push_back({"Which text is it?", {"text 7", "seven"}, {7}});
  sources.questions2 = sources.questions1;
  sources.questions2.questions[0].documents = {3, 9};
  return sources;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

class EveryTask : public ::testing::TestWithParam<RetrievalTask> {};
INSTANTIATE_TEST_SUITE_P(Tasks, EveryTask, ::testing::ValuesIn(RetrievalTasks().begin(), RetrievalTasks().end()),
                         [](const auto& task) { return std::string(RetrievalTaskName(task.param)); });

TEST_P(EveryTask, NamesAreReadBack) {
  const auto parsed = ParseRetrievalTask(RetrievalTaskName(GetParam()));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, GetParam());
}

TEST_P(EveryTask, TheSameSeedMakesTheSameItemAndAnotherSeedAnother) {
  const RetrievalSources sources = Sources();
  const auto first = MakeRetrievalItem(GetParam(), sources, 5, 20), second = MakeRetrievalItem(GetParam(), sources, 5, 20);
  const auto other = MakeRetrievalItem(GetParam(), sources, 6, 20);
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(first->prompt, second->prompt);
  EXPECT_EQ(first->expected, second->expected);
  EXPECT_NE(first->prompt, other->prompt);
}

TEST_P(EveryTask, WhatIsAskedForStandsInThePromptAtEverySizeAndDoesNotDependOnIt) {
  const RetrievalSources sources = Sources();
  const auto small = MakeRetrievalItem(GetParam(), sources, 11, 9);
  ASSERT_TRUE(small.ok());
  ASSERT_FALSE(small->expected.empty());
  for (const int size : {9, 10, 100, 1000}) {
    const auto item = MakeRetrievalItem(GetParam(), sources, 11, size);
    ASSERT_TRUE(item.ok());
    EXPECT_EQ(item->expected, small->expected);
    EXPECT_EQ(item->answer_start, small->answer_start);
    EXPECT_GE(item->prompt.size(), small->prompt.size());
    if (item->any) continue;
    for (const std::string& expected : item->expected) EXPECT_GE(Count(item->prompt, expected), 1u) << expected;
  }
}

TEST(RetrievalTasks, ASourceThatIsMissingIsNamed) {
  for (const RetrievalTask task : {RetrievalTask::kNiahSingle2, RetrievalTask::kQuestions1, RetrievalTask::kQuestions2}) {
    const auto item = MakeRetrievalItem(task, {}, 0, 10);
    ASSERT_FALSE(item.ok());
    EXPECT_EQ(item.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(item.status().message().find(RetrievalTaskName(task)), std::string::npos);
  }
}

TEST(RetrievalTasks, FormsHaveTheCountsOfThePaper) {
  const RetrievalSources sources = Sources();
  const std::map<RetrievalTask, std::pair<size_t, size_t>> needles_and_expected = {
      {RetrievalTask::kNiahSingle1, {1, 1}},   {RetrievalTask::kNiahSingle2, {1, 1}},    {RetrievalTask::kNiahMultikey1, {4, 1}},
      {RetrievalTask::kNiahMultikey2, {21, 1}}, {RetrievalTask::kNiahMultivalue, {4, 4}}, {RetrievalTask::kNiahMultiquery, {4, 4}}};
  for (const auto& [task, counts] : needles_and_expected) {
    const auto item = MakeRetrievalItem(task, sources, 3, 20);
    ASSERT_TRUE(item.ok());
    EXPECT_EQ(Count(item->prompt, "One of the secret "), counts.first) << RetrievalTaskName(task);
    EXPECT_EQ(item->expected.size(), counts.second) << RetrievalTaskName(task);
  }
}

TEST(RetrievalTasks, VariablesAreAssignedBeforeTheyAreReadAndFormOneChain) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto item = MakeRetrievalItem(RetrievalTask::kVariableTracking, {}, seed, 3);
    ASSERT_TRUE(item.ok());
    ASSERT_EQ(item->expected.size(), 5u);
    size_t before = 0;
    for (size_t i = 0; i < 5; ++i) {
      const size_t at = item->prompt.find("VAR " + item->expected[i] + " = ");
      ASSERT_NE(at, std::string::npos);
      EXPECT_GE(at, before);
      before = at;
      if (i > 0) {
        EXPECT_NE(item->prompt.find(item->expected[i] + " = VAR " + item->expected[i - 1]), std::string::npos);
      }
    }
  }
}

TEST(RetrievalTasks, CommonAndFrequentWordsAreTheMostFrequentOnes) {
  for (const RetrievalTask task : {RetrievalTask::kCommonWords, RetrievalTask::kFrequentWords}) {
    const auto item = MakeRetrievalItem(task, {}, 1, 400);
    ASSERT_TRUE(item.ok());
    const size_t begin = item->prompt.find("\n\n"), end = item->prompt.rfind("\n\n");
    std::istringstream words(item->prompt.substr(begin, end - begin));
    std::map<std::string, int> counts;
    for (std::string word; words >> word;) {
      if (std::isalpha(static_cast<unsigned char>(word[0]))) ++counts[word];
    }
    int fewest_expected = 1 << 30, most_other = 0;
    for (const auto& [word, count] : counts) {
      const bool expected = std::find(item->expected.begin(), item->expected.end(), word) != item->expected.end();
      if (expected) fewest_expected = std::min(fewest_expected, count);
      else most_other = std::max(most_other, count);
    }
    EXPECT_GT(fewest_expected, most_other) << RetrievalTaskName(task);
  }
}

TEST(ScoreAnswer, CountsTheShareOfExpectedTextsAndForQuestionsAnyOfThem) {
  RetrievalItem item;
  item.expected = {"1234567", "Blue"};
  EXPECT_EQ(ScoreAnswer(item, " 1234567 and 7654321"), 0.5);
  EXPECT_EQ(ScoreAnswer(item, "blue 1234567"), 1.0);
  EXPECT_EQ(ScoreAnswer(item, ""), 0.0);
  item.any = true;
  EXPECT_EQ(ScoreAnswer(item, "BLUE"), 1.0);
  EXPECT_EQ(ScoreAnswer(item, "red"), 0.0);
}

TEST(SplitSentences, CutsBehindStopsAndAtBlankLines) {
  EXPECT_EQ(SplitSentences("One is here. Two\nis here!  A title\n\nThree? v1.2 stays"),
            (std::vector<std::string>{"One is here.", "Two is here!", "A title", "Three?", "v1.2 stays"}));
  EXPECT_TRUE(SplitSentences(" \n\n ").empty());
}

class QuestionFile : public ::testing::Test {
 protected:
  std::filesystem::path Write(const std::string& text) {
    const auto path = std::filesystem::path(::testing::TempDir()) / "questions.json";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(QuestionFile, SquadParagraphsBecomeDocumentsAndAnswerableQuestions) {
  const auto set = ReadSquad(Write(R"({"version":"v2.0","data":[{"title":"t","paragraphs":[{"context":"Water is wet.","qas":[
    {"question":"What is wet?","id":"1","answers":[{"text":"Water","answer_start":0}],"is_impossible":false},
    {"question":"What is dry?","id":"2","answers":[],"is_impossible":true}]}]}]})"));
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->documents, std::vector<std::string>{"Water is wet."});
  ASSERT_EQ(set->questions.size(), 1u);
  EXPECT_EQ(set->questions[0].answers, std::vector<std::string>{"Water"});
}

TEST_F(QuestionFile, HotpotDocumentsAreSharedBetweenQuestions) {
  const auto set = ReadHotpotQa(Write(R"([{"question":"a?","answer":"x","context":[["T",["One.","Two."]],["U",["Three."]]]},
    {"question":"b?","answer":"y","context":[["T",["One.","Two."]]]}])"));
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->documents, (std::vector<std::string>{"T\nOne.Two.", "U\nThree."}));
  EXPECT_EQ(set->questions[1].documents, std::vector<int>{0});
}

TEST_F(QuestionFile, OtherFilesAreRefusedByNameAndField) {
  for (const char* text : {"", "[]", "{}", R"({"data":3})", R"({"data":[{}]})", R"({"data":[{"paragraphs":[{"context":1,"qas":[]}]}]})",
                           R"({"data":[{"paragraphs":[{"context":"c","qas":[{"question":"q","answers":[{"text":3}]}]}]}]})",
                           R"([{"question":"a","answer":"b","context":[["T",[1]]]}])", R"([{"question":"a"}])"}) {
    const auto path = Write(text);
    for (const auto& set : {ReadSquad(path), ReadHotpotQa(path)}) {
      ASSERT_FALSE(set.ok()) << text;
      EXPECT_NE(set.status().message().find("questions.json"), std::string::npos);
    }
  }
  EXPECT_EQ(ReadSquad("/nonexistent/x.json").status().code(), StatusCode::kNotFound);
}

TEST(SeededDraw, IsTheSameOnEveryMachine) {
  SeededDraw draw(42);
  EXPECT_EQ(draw.Digits(7), "4402186");
  EXPECT_EQ(draw.Key(), "tall anchor");
}

}  // namespace
}  // namespace oscar::engine
