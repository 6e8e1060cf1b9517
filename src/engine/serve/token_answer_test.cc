#include "src/engine/serve/token_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/engine/serve/fake_responder.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

class TokenAnswerTest : public ::testing::Test {
 protected:
  std::unique_ptr<TokenAnswer> Make(CompletionCall call) {
    call.kind = CallKind::kTokens;
    call.requests.resize(static_cast<size_t>(call.choices));
    for (GenerationRequest& request : call.requests) request.prompt = {'h', 'i', '!'};
    return std::make_unique<TokenAnswer>(call, *tokenizer_, "mine", HttpFields(), std::make_shared<FakeResponder>(&sent_));
  }
  static GenerationEvent Event(int32_t token, std::optional<FinishReason> finish = std::nullopt) {
    GenerationEvent event;
    event.text = "not shown";
    event.tokens = {token};
    event.scores = {TokenScore{.token = {token, -0.5}}};
    event.finish = finish;
    event.cached_tokens = 2;
    return event;
  }
  static GenerationEvent Cancelled() {
    GenerationEvent event;
    event.error = {StatusCode::kCancelled, "cancelled"};
    return event;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Create(oscar::testing::TinyBytePairMetadata());
  SentAnswer sent_;
};

TEST_F(TokenAnswerTest, ABodyHasTheTokensOfEveryChoiceAndNoText) {
  CompletionCall call;
  call.choices = 2;
  call.scores = 0;
  const auto answer = Make(call);
  answer->Add(0, Event('a'));
  answer->Add(1, Event('b', FinishReason::kLength));
  answer->Add(0, Event('c', FinishReason::kEndToken));
  const json body = json::parse(sent_.body);
  EXPECT_EQ(body["request_id"], "mine");
  EXPECT_EQ(body["choices"][0]["token_ids"], (json{'a', 'c'}));
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(), 2u);
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"][1]["token"], "c");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][1]["token_ids"], json{'b'});
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(sent_.body.find("not shown"), std::string::npos);
}

TEST_F(TokenAnswerTest, ChunksOfAStreamHaveNewTokensOnly) {
  CompletionCall call;
  call.stream = call.include_usage = true;
  const auto answer = Make(call);
  answer->Add(0, Event('a'));
  answer->Add(0, Event('b'));
  answer->Add(0, Event('c', FinishReason::kStopString));
  std::vector<int32_t> tokens;
  std::vector<json> events;
  for (const std::string& text : sent_.Events()) events.push_back(json::parse(text));
  ASSERT_EQ(events.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events[i]["choices"][0]["token_ids"].size(), 1u);
    tokens.push_back(events[i]["choices"][0]["token_ids"][0].get<int32_t>());
    EXPECT_TRUE(events[i]["usage"].is_null());
  }
  EXPECT_EQ(tokens, (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_TRUE(events[1]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events[3]["choices"].empty());
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 3);
  EXPECT_TRUE(sent_.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(sent_.ended);
}

TEST_F(TokenAnswerTest, WhoIsAbortedHasAnsweredWithWhatThereWas) {
  const auto answer = Make({});
  answer->Add(0, Event('a'));
  answer->Add(0, Cancelled());
  EXPECT_EQ(sent_.status, 200);
  const json choice = json::parse(sent_.body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "abort");
  EXPECT_EQ(choice["token_ids"], json{'a'});
}

TEST_F(TokenAnswerTest, OtherFailuresAreErrors) {
  GenerationEvent event;
  event.error = {StatusCode::kNonFinite, "bad numbers"};
  Make({})->Add(0, event);
  EXPECT_EQ(sent_.status, 500);
  EXPECT_EQ(json::parse(sent_.body)["error"]["code"], "numeric_error");
}

}  // namespace
}  // namespace oscar::engine
