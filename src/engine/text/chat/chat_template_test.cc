#include "src/engine/text/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace oscar::engine {
namespace {

using ::testing::HasSubstr;

std::string ReadData(const std::string& name) {
  std::ifstream file("tests/data/chat_templates/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

Result<std::string> Render(std::string_view source, const ChatRequest& request) {
  const Result<ChatTemplate> made = ChatTemplate::Create(source, "<s>", "</s>");
  return made.ok() ? made->Render(request) : made.status();
}

ChatRequest Hello() {
  ChatRequest request;
  request.messages.push_back({"user", "Hi", "", "", ""});
  return request;
}

// What jinja2 made of the real templates and of our own in their style (tests/oracle/chat_template_oracle.py --record).
TEST(ChatTemplate, RendersRecordedConversationsAsJinja2Does) {
  using Json = nlohmann::ordered_json;
  const Json cases = Json::parse(ReadData("expected.json"));
  ASSERT_GE(cases.size(), 60u);
  for (const Json& test : cases) {
    ChatRequest request;
    const auto text = [](const Json& object, const char* key) {
      return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
    };
    const auto dump = [](const Json& object, const char* key) {
      return object.contains(key) && !object[key].is_null() ? object[key].dump() : "";
    };
    for (const Json& m : test["messages"]) {
      request.messages.push_back(
          {text(m, "role"), text(m, "content"), dump(m, "tool_calls"), text(m, "tool_call_id"), text(m, "name")});
    }
    request.tools_json = dump(test, "tools");
    request.extra_json = dump(test, "extra");
    request.add_generation_prompt = test["add_generation_prompt"].get<bool>();
    const Result<std::string> prompt = Render(ReadData(test["name"].get<std::string>()), request);
    if (test["text"].is_null()) {
      EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument) << test.dump();
    } else {
      ASSERT_TRUE(prompt.ok()) << prompt.status().message() << "\n" << test.dump();
      EXPECT_EQ(*prompt, test["text"].get<std::string>()) << test.dump();
    }
  }
}

TEST(ChatTemplate, GivesATemplateTheVariablesOfTransformers) {
  ChatRequest request = Hello();
  EXPECT_EQ(Render("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt "
                   "}}{{ x is defined }}",
                   request)
                .value(),
            "<s></s>TrueTrueTrueFalse");
  request.tools_json = R"([{"b": 1.0, "a": "é"}])";
  request.extra_json = R"({"x": {"y": 2}, "bos_token": "B"})";
  request.add_generation_prompt = false;
  EXPECT_EQ(Render("{{ bos_token }}{{ tools[0] | tojson }}{{ add_generation_prompt }}{{ x.y }}", request).value(),
            "B{\"b\": 1.0, \"a\": \"é\"}False2");
  EXPECT_EQ(ChatTemplate::Create("{{ bos_token is defined }}", "", "")->Render(request).value(), "True");
  EXPECT_EQ(ChatTemplate::Create("{{ eos_token is defined }}", "", "")->Render(request).value(), "False");
}

TEST(ChatTemplate, LeavesOutAbsentFieldsAndContentOfPureToolCalls) {
  ChatRequest request = Hello();
  request.messages.push_back(
      {"assistant", "", R"([{"id": "1", "function": {"name": "f", "arguments": "{\"x\": 1}"}}])", "", ""});
  request.messages.push_back({"tool", "9", "", "call_1", "f"});
  EXPECT_EQ(Render("{% for m in messages %}{{ m | tojson }}\n{% endfor %}", request).value(),
            "{\"role\": \"user\", \"content\": \"Hi\"}\n"
            "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": "
            "\"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}\n"
            "{\"role\": \"tool\", \"content\": \"9\", \"tool_call_id\": \"call_1\", \"name\": \"f\"}\n");
}

TEST(ChatTemplate, NamesTheFieldOfABadRequest) {
  const auto message = [](const ChatRequest& request) {
    const Status status = Render("x", request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  ChatRequest request = Hello();
  request.tools_json = "{}";
  EXPECT_THAT(message(request), HasSubstr("tools must be a JSON array"));
  request.tools_json = "[1,";
  EXPECT_THAT(message(request), HasSubstr("tools is not usable JSON"));
  request = Hello();
  request.extra_json = "[]";
  EXPECT_THAT(message(request), HasSubstr("must be a JSON object"));
  request.extra_json = R"({"messages": []})";
  EXPECT_THAT(message(request), HasSubstr("'messages' cannot be an extra one"));
  request = Hello();
  request.messages.push_back({"user", "\xff", "", "", ""});
  EXPECT_THAT(message(request), HasSubstr("messages[1].content is not valid UTF-8"));
  request = Hello();
  request.messages[0].tool_calls_json = R"({"a": 1})";
  EXPECT_THAT(message(request), HasSubstr("messages[0].tool_calls must be a JSON array"));
  request = Hello();
  request.messages[0].role = "";
  EXPECT_THAT(message(request), HasSubstr("messages[0].role is empty"));
}

TEST(ChatTemplate, NamesTheConstructOfABadTemplate) {
  EXPECT_THAT(ChatTemplate::Create("a\n{% include 'x' %}", "", "").status().message(),
              HasSubstr("line 2: not supported: the tag 'include'"));
  EXPECT_EQ(ChatTemplate::Create("{{ 1 + }}", "", "").status().code(), StatusCode::kCorruptData);
  EXPECT_EQ(Render("{{ raise_exception('no') }}", Hello()).status().message(), "chat template: line 1: no");
}

TEST(ChatTemplate, TakesTheDeepestJsonThatItReads) {
  ChatRequest request = Hello();
  request.messages[0].tool_calls_json = std::string(128, '[') + std::string(128, ']');
  EXPECT_TRUE(Render("{{ messages | tojson }}", request).ok());
  request.messages[0].tool_calls_json = std::string(129, '[') + std::string(129, ']');
  EXPECT_FALSE(Render("{{ messages | tojson }}", request).ok());
}

}  // namespace
}  // namespace oscar::engine
