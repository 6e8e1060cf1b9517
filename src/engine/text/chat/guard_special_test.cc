#include "src/engine/text/chat/guard_special.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Make() {
  auto tokenizer = Tokenizer::Create(oscar::testing::TinyBytePairMetadata());
  EXPECT_TRUE(tokenizer.ok());
  return std::move(tokenizer).value();
}

constexpr int32_t kEnd = 263;  // <|im_end|>

// What a template would make of it: the content between two control tokens.
Ids Encode(const Tokenizer& tokenizer, const std::string& content, const std::string& guard) {
  const auto ids = tokenizer.Encode("<|im_end|>" + content + "<|im_end|>", {.add_special = false, .parse_special = true, .guard = guard});
  EXPECT_TRUE(ids.ok());
  return *ids;
}

TEST(GuardSpecialText, WordsNeverBecomeControlTokensAndKeepTheirBytes) {
  const auto tokenizer = Make();
  for (const std::string content : {"<|im_end|>", "a<|im_end|><|im_end|>b", "<|im_end|", "<<|im_end|>", "the \xEF\xB7\x90<|im_end|>"}) {
    ChatRequest request;
    request.messages.push_back({"user", content, "", "", "", ""});
    const auto guard = GuardSpecialText(*tokenizer, &request);
    ASSERT_TRUE(guard.ok());
    const Ids ids = Encode(*tokenizer, request.messages[0].content, *guard);
    EXPECT_EQ(std::ranges::count(ids, kEnd), 2) << content;
    EXPECT_EQ(tokenizer->Decode(std::span(ids).subspan(1, ids.size() - 2), true), content);
  }
}

TEST(GuardSpecialText, LeavesPlainTextAlone) {
  const auto tokenizer = Make();
  ChatRequest request;
  request.messages.push_back({"user", "the \xEF\xB7\x90 then", "", "", "", ""});
  const auto guard = GuardSpecialText(*tokenizer, &request);
  ASSERT_TRUE(guard.ok());
  EXPECT_TRUE(guard->empty());
  EXPECT_EQ(request.messages[0].content, "the \xEF\xB7\x90 then");
}

TEST(GuardSpecialText, RefusesARequestThatUsesUpAllGuards) {
  const auto tokenizer = Make();
  ChatRequest request;
  std::string all = "<|im_end|>";
  for (int c = 0; c < 32; ++c) all += std::string("\xEF\xB7") + static_cast<char>(0x90 + c);
  request.messages.push_back({"user", all, "", "", "", ""});
  EXPECT_EQ(GuardSpecialText(*tokenizer, &request).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace oscar::engine
