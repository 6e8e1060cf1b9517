#include "src/engine/serve/completion_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/engine/serve/fake_responder.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class CompletionAnswerTest : public ::testing::Test {
 protected:
  std::unique_ptr<CompletionAnswer> Make(CompletionCall call) {
    call.requests.resize(static_cast<size_t>(call.choices));
    for (GenerationRequest& request : call.requests) request.prompt = {'h', 'i'};
    return std::make_unique<CompletionAnswer>(call, CompletionAnswer::Model{*tokenizer_, report_}, CompletionAnswer::Identity{"id", "m", "fp", 1}, HttpFields(),
                                              std::make_shared<FakeResponder>(&sent_));
  }
  static GenerationEvent Event(std::string text, std::optional<FinishReason> finish = std::nullopt) {
    GenerationEvent event;
    event.text = std::move(text);
    event.tokens = {'x'};
    event.finish = finish;
    event.completion_tokens = 1;
    return event;
  }
  const std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Create(oscar::testing::TinyBytePairMetadata());
  const CacheReport report_{*ParseKvMethod("bf16"), {}, {}};
  SentAnswer sent_;
};

TEST_F(CompletionAnswerTest, ASilentStreamBeginsAfterTenSecondsAndPingsAfterFifteen) {
  CompletionCall call;
  call.kind = CallKind::kChat;
  call.stream = true;
  const auto answer = Make(call);
  const auto start = CompletionAnswer::Clock::now();
  EXPECT_TRUE(answer->Tick(start + std::chrono::seconds(9)));
  EXPECT_EQ(sent_.status, 0);
  EXPECT_TRUE(answer->Tick(start + std::chrono::seconds(11)));
  EXPECT_EQ(sent_.status, 200);
  EXPECT_EQ(sent_.body, "");
  EXPECT_TRUE(answer->Tick(start + std::chrono::seconds(16)));
  EXPECT_EQ(sent_.body, ": ping\n\n");
  EXPECT_TRUE(answer->Tick(start + std::chrono::seconds(20)));
  EXPECT_EQ(sent_.body, ": ping\n\n");
  answer->Add(0, Event("a", FinishReason::kEndToken));
  EXPECT_TRUE(sent_.ended);
  EXPECT_FALSE(answer->Tick(start + std::chrono::seconds(100)));
}

TEST_F(CompletionAnswerTest, AnErrorBeforeTheHeadIsAStatusAndBehindItAnEvent) {
  CompletionCall call;
  call.kind = CallKind::kChat;
  call.stream = true;
  Make(call)->Fail(FromStatus({StatusCode::kResourceExhausted, "full"}));
  EXPECT_EQ(sent_.status, 429);
  const auto answer = Make(call);
  answer->Add(0, Event("a"));
  answer->Fail(FromStatus({StatusCode::kNonFinite, "bad"}));
  EXPECT_EQ(sent_.status, 200);
  EXPECT_EQ(json::parse(sent_.Events().back())["error"]["code"], "numeric_error");
  EXPECT_TRUE(sent_.body.ends_with("data: [DONE]\n\n"));
  answer->Add(0, Event("late"));
  EXPECT_THAT(sent_.body, ::testing::Not(HasSubstr("late")));
}

TEST_F(CompletionAnswerTest, ReasoningAndCallsGoWhereTheyBelongInStreamsAndBodies) {
  const std::vector<std::string> pieces = {"<thi", "nk>hm</think>\n\n", "Let me.\n<tool", "_call>\n{\"name\": \"f\", \"argu", "ments\": {\"a\"", ": 1}}\n</tool_call>"};
  CompletionCall call;
  call.kind = CallKind::kChat;
  call.parser = {.tools = true, .format = ToolFormat::kHermes, .reasoning = true};
  const auto feed = [&](CompletionAnswer& answer) {
    for (size_t i = 0; i < pieces.size(); ++i) answer.Add(0, Event(pieces[i], i + 1 == pieces.size() ? std::optional(FinishReason::kEndToken) : std::nullopt));
  };
  feed(*Make(call));
  const json whole = json::parse(sent_.body)["choices"][0];
  EXPECT_EQ(whole["message"]["reasoning_content"], "hm");
  EXPECT_EQ(whole["message"]["content"], "Let me.");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"], (json{{"name", "f"}, {"arguments", "{\"a\": 1}"}}));
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  call.stream = true;
  feed(*Make(call));
  std::string content, reasoning, name, arguments, finish;
  for (const std::string& text : sent_.Events()) {
    const json event = json::parse(text);
    const json& delta = event["choices"][0]["delta"];
    EXPECT_LE(delta.size(), 2u);
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    for (const json& one : delta.value("tool_calls", json::array())) {
      name += one["function"].value("name", "");
      arguments += one["function"].value("arguments", "");
    }
    if (event["choices"][0]["finish_reason"].is_string()) finish = event["choices"][0]["finish_reason"];
  }
  EXPECT_EQ(content + "|" + reasoning + "|" + name + "|" + arguments + "|" + finish, "Let me.|hm|f|{\"a\": 1}|tool_calls");
}

TEST_F(CompletionAnswerTest, UsageCountsThePromptOncePerPromptAndAllChoices) {
  CompletionCall call;
  call.choices = 3;
  const auto answer = Make(call);
  for (int choice = 0; choice < 3; ++choice) answer->Add(choice, Event("x", FinishReason::kLength));
  const json body = json::parse(sent_.body);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["choices"].size(), 3u);
}

}  // namespace
}  // namespace oscar::engine
