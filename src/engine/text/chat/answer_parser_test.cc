#include "src/engine/text/chat/answer_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "src/engine/text/stream_decoder.h"
#include "src/testing/seeds.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

// Parts in one line: "content", [reasoning], {name arguments}.
std::string Summary(const std::vector<AnswerPart>& parts) {
  std::string content, reasoning, calls;
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kContent) content += part.text;
    if (part.kind == AnswerPart::Kind::kReasoning) reasoning += part.text;
    if (part.kind == AnswerPart::Kind::kCall) calls += "{" + part.text + "}";
    if (part.kind == AnswerPart::Kind::kArguments) calls += part.text;
  }
  return content + "[" + reasoning + "]" + calls;
}

std::string Parse(const AnswerParser::Options& options, const std::vector<std::string>& pieces) {
  AnswerParser parser(options);
  std::vector<AnswerPart> all;
  const auto keep = [&](std::vector<AnswerPart> parts) { all.insert(all.end(), parts.begin(), parts.end()); };
  for (const std::string& piece : pieces) keep(parser.Push(piece));
  keep(parser.Finish());
  return Summary(all);
}

struct Case {
  AnswerParser::Options options;
  const char *text, *wanted;
};

const std::vector<Case>& Cases() {
  static const std::shared_ptr<const TextParameters> kTexts = std::make_shared<TextParameters>(TextParameters{{"f", {"city"}}});
  static const AnswerParser::Options kPlain, kHermes{true, ToolFormat::kHermes, false, false}, kLlama{true, ToolFormat::kLlama3, false, false},
      kThinks{false, ToolFormat::kHermes, true, false}, kOpen{true, ToolFormat::kHermes, true, true},
      kCoder{true, ToolFormat::kQwenCoder, false, false, kTexts}, kGlm{true, ToolFormat::kGlm, false, false, kTexts},
      kMistral{true, ToolFormat::kMistral, false, false}, kNamed{true, ToolFormat::kMistralNamed, false, false, nullptr, true},
      kPythonic{true, ToolFormat::kPythonic, false, false};
  static const std::vector<Case> kCases = {
      {kPlain, "<think>a</think> <tool_call>", "<think>a</think> <tool_call>[]"},
      {kHermes, "Hello", "Hello[]"},
      {kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>", "[]{f}{\"a\": \"}\\\"{\"}"},
      {kHermes, "Let me see. \n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\":[{}]}}\n</tool_call>\n",
       "Let me see.[]{f}{}{g}{\"x\":[{}]}"},
      {kHermes, "a <tool_call> b", "a <tool_call> b[]"},
      {kHermes, "a <tool_call>{\"name\": 5}</tool_call>", "a <tool_call>{\"name\": 5}</tool_call>[]"},
      {kHermes, "a <tool_call>{\"name\": \"f\"", "a <tool_call>{\"name\": \"f\"[]"},
      {kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "[]{f}{\"a\": 1"},
      {kHermes, "1 < 2 <tool", "1 < 2 <tool[]"},
      {kLlama, "{\"name\": \"f\", \"parameters\": {\"a\": {}}}", "[]{f}{\"a\": {}}"},
      {kLlama, " {\"no\": 1}", "{\"no\": 1}[]"},
      {kLlama, "Hi {\"name\": \"f\", \"parameters\": {}}", "Hi {\"name\": \"f\", \"parameters\": {}}[]"},
      {kThinks, "<think>\nhm\n</think>\n\nYes.", "Yes.[\nhm\n]"},
      {kThinks, "\n<think>hm", "[hm]"},
      {kThinks, "<thin", "<thin[]"},
      {kThinks, "No <think> here", "No <think> here[]"},
      {kOpen, "hm</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "[hm]{f}{}"},
      {kCoder, "I look.\n<tool_call>\n<function=f>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
       "I look.[]{f}{\"city\": \"12\", \"days\": 3}"},
      {kCoder, "<tool_call><function=g></function></tool_call>\n<tool_call>\n<function=f>\n<parameter=city>\n\nNew\n York \n</parameter></function></tool_call>",
       "[]{g}{}{f}{\"city\": \"\\nNew\\n York \"}"},
      {kCoder, "<tool_call>\n<function=f>\n<parameter=x>\n{\"a\": [1]}\n</parameter>\n<parameter=y>\nno JSON\n</parameter>\n</function>\n</tool_call>",
       "[]{f}{\"x\": {\"a\": [1]}, \"y\": \"no JSON\"}"},
      {kCoder, "<tool_call>\n<function=f>\n<parameter=city>\nPar", "[]{f}{\"city\": \"Par"},
      {kCoder, "a <tool_call> b", "a <tool_call> b[]"},
      {kCoder, "<tool_call>\n<function=f>\nwhat", "\nwhat[]{f}{}"},
      {kGlm, "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value> \"P\" </arg_value>\n<arg_key>n</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
       "[]{f}{\"city\": \" \\\"P\\\" \", \"n\": true}"},
      {kGlm, "So.\n<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call><tool_call>g\n</tool_call>\n", "So.[]{f}{\"n\": 1}{g}{}"},
      {kGlm, "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1", "[]{f}{\"n\": 1"},
      {kGlm, "<tool_call>{\"name\": 1}</tool_call>", "<tool_call>{\"name\": 1}</tool_call>[]"},
      {kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]}\"}, \"id\": \"a}b\"}, {\"name\": \"g\", \"arguments\": {}}]", "[]{f}{\"a\": \"]}\"}{g}{}"},
      {kMistral, "Well, [TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}", "Well,[]{f}{}"},
      {kMistral, "see [TOOL_CALLS] [1]", "see [TOOL_CALLS] [1][]"},
      {kMistral, "[1, 2] and [TOOL", "[1, 2] and [TOOL[]"},
      {kNamed, "Yes.[TOOL_CALLS]f[ARGS]{\"a\": {}}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}", "Yes.[]{f}{\"a\": {}}{g}{}"},
      {kNamed, "[TOOL_CALLS]f{\"a\": 1}", "[]{f}{\"a\": 1}"},
      {kNamed, "[TOOL_CALLS]f[ARGS]none", "[TOOL_CALLS]f[ARGS]none[]"},
      {kPythonic, "[f(a=True, b=\"None, True)\\\"]\", c=[1e5, {\"x\": None}], d=-2.5), g()]", "[]{f}{\"a\": true, \"b\": \"None, True)\\\"]\", \"c\": [1e5, {\"x\": null}], \"d\": -2.5}{g}{}"},
      {kPythonic, " [f(a=False)]\n", "[]{f}{\"a\": false}"},
      {kPythonic, "Hi [f(a=1)]", "Hi [f(a=1)][]"},
      {kPythonic, "[1, 2]", "[1, 2][]"},
      {kPythonic, "[f", "[f[]"},
      {kPythonic, "[f(a=\"x", "[]{f}{\"a\": \"x"},
      {kPythonic, "[f(a=None", "[]{f}{\"a\": null"},
      {kPythonic, "[f(a=1), 5]", " 5][]{f}{\"a\": 1}"},
      {kPythonic, "[f(1)]", "1)][]{f}{}"},
      {kPythonic, "[f(a=1}]", "}][]{f}{\"a\": 1}"},
  };
  return kCases;
}

TEST(AnswerParser, TakesAnswersApart) {
  for (const Case& c : Cases()) EXPECT_EQ(Parse(c.options, {c.text}), c.wanted) << c.text;
}

TEST(AnswerParser, GivesTheSamePartsHoweverTheTextIsCut) {
  std::mt19937_64 rng(oscar::testing::TestSeed(11));
  for (const Case& c : Cases()) {
    const std::string text = c.text;
    std::vector<std::string> bytes;
    for (const char byte : text) bytes.push_back(std::string(1, byte));
    EXPECT_EQ(Parse(c.options, bytes), c.wanted) << text;
    for (int i = 0; i < 20; ++i) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < text.size();) {
        pieces.push_back(text.substr(at, 1 + rng() % 9));
        at += pieces.back().size();
      }
      EXPECT_EQ(Parse(c.options, pieces), c.wanted) << text;
    }
  }
}

// Pieces of all notations in any order: nothing breaks, and cuts make no difference.
TEST(AnswerParser, GivesTheSamePartsOfNonsenseHoweverItIsCut) {
  constexpr const char* kPieces[] = {"<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>",
                                     "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "{\"name\": \"f\", \"arguments\": ", "{", "}", "[", "]", ",", "f", "\n", " ", "\"", "\\",
                                     "1", "<think>", "</think>", "<", "\xC3\xA9", "[f(a=", "a=", "(", ")", "True"};
  std::mt19937_64 rng(oscar::testing::TestSeed(23));
  for (const ToolFormat format : {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kQwenCoder, ToolFormat::kGlm, ToolFormat::kMistral, ToolFormat::kMistralNamed, ToolFormat::kPythonic}) {
    for (int i = 0; i < 3000; ++i) {
      std::string text = rng() % 2 == 0 ? std::string(CallMarker(format)) : "";
      for (uint64_t piece = rng() % 14; piece > 0; --piece) text += kPieces[rng() % std::size(kPieces)];
      const AnswerParser::Options options{true, format, rng() % 2 == 0, rng() % 8 == 0};
      std::vector<std::string> bytes;
      for (const char byte : text) bytes.push_back(std::string(1, byte));
      ASSERT_EQ(Parse(options, bytes), Parse(options, {text})) << static_cast<int>(format) << ": " << text;
    }
  }
}

TEST(AnswerParser, KnowsWhetherItIsReasoningAndHowManyCallsAreComplete) {
  AnswerParser parser({true, ToolFormat::kHermes, true, false});
  parser.Push("<think>a");
  EXPECT_TRUE(parser.in_reasoning());
  parser.Push("</think>b<tool_call>{\"name\": \"f\", \"arguments\": {}");
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(parser.num_calls(), 0);
  parser.Push("}</tool_call>");
  EXPECT_EQ(parser.num_calls(), 1);
}

TEST(AnswerFormat, IsReadOffTheTemplate) {
  EXPECT_FALSE(DetectAnswerFormat("{% for m in messages %}{{ m.content }}{% endfor %}").template_has_tools);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}<tool_call>{% endif %}").tools, ToolFormat::kHermes);
  EXPECT_TRUE(DetectAnswerFormat("{% if tools %}<tool_call>{% endif %}<think>").reasoning);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}ipython {\"name\": 1, \"parameters\": 2}{% endif %}").tools, ToolFormat::kLlama3);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}[TOOL_CALLS]{% endif %}").tools, ToolFormat::kMistral);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}[TOOL_CALLS]{{ n }}[ARGS]{% endif %}").tools, ToolFormat::kMistralNamed);
  EXPECT_TRUE(DetectAnswerFormat("{% if tools %}[TOOL_CALLS]{{ n }}[CALL_ID]{{ i }}[ARGS]{% endif %}").call_ids);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}<tool_call><function={{ n }}>{% endif %}").tools, ToolFormat::kQwenCoder);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}<tool_call>{{ n }}<arg_key>{% endif %}").tools, ToolFormat::kGlm);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}[func_name1(params_name1=params_value1), func_name2(params)]{% endif %}").tools, ToolFormat::kPythonic);
  EXPECT_EQ(DetectAnswerFormat("{% if tools %}{{ tools }}{% endif %}").tools, ToolFormat::kUnknown);
  EXPECT_TRUE(OpensReasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(OpensReasoning("<think>\n\n</think>\n\n"));
}

TEST(AnswerFormat, IsWhatANameSaysWhereTheTemplateHasTools) {
  const std::string tools = "{% if tools %}{{ tools }}{% endif %}";
  const std::pair<const char*, ToolFormat> kNamed[] = {{"hermes", ToolFormat::kHermes}, {"qwen3_coder", ToolFormat::kQwenCoder}, {"glm45", ToolFormat::kGlm},
                                                       {"mistral", ToolFormat::kMistral}, {"llama3_json", ToolFormat::kLlama3}, {"pythonic", ToolFormat::kPythonic}};
  for (const auto& [name, format] : kNamed) {
    const auto named = AnswerFormatNamed(name, tools);
    ASSERT_TRUE(named.ok()) << name;
    EXPECT_EQ(named->tools, format) << name;
    EXPECT_EQ(AnswerFormatNamed(name, "{{ messages }}").ok(), format == ToolFormat::kHermes) << name;
    EXPECT_NE(ToolParserNames().find(name), std::string::npos);
  }
  EXPECT_EQ(AnswerFormatNamed("mistral", tools + "[TOOL_CALLS]f[ARGS]")->tools, ToolFormat::kMistralNamed);
  EXPECT_EQ(AnswerFormatNamed("llama", tools).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ToolParserWarning("hermes", tools), "");  // nothing known of it
  EXPECT_EQ(ToolParserWarning("hermes", tools + "<tool_call>"), "");
  EXPECT_EQ(ToolParserWarning("mistral", tools + "[TOOL_CALLS]f[ARGS]"), "");
  EXPECT_EQ(ToolParserWarning("glm45", tools + "<tool_call>"), "--tool-parser glm45: the chat template shows calls as hermes does; a call written so will be taken for text");
  EXPECT_EQ(ToolParserWarning("hermes", "{{ messages }}"), "");
}

TEST(AnswerFormat, ToolsBecomeWordsForATemplateWithoutThem) {
  ChatRequest request;
  request.messages = {{"user", "hi", "", "", "", ""},
                      {"assistant", "", R"([{"type":"function","function":{"name":"f","arguments":{"a":1}}}])", "", "", ""},
                      {"tool", "42", "", "call_1", "", ""}};
  request.tools_json = R"([{"type":"function","function":{"name":"f"}}])";
  DescribeTools(&request);
  EXPECT_TRUE(request.tools_json.empty());
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_NE(request.messages[0].content.find("\"name\":\"f\""), std::string::npos);
  EXPECT_EQ(request.messages[2].content, "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>");
  EXPECT_EQ(request.messages[3].role, "user");
  EXPECT_EQ(request.messages[3].content, "<tool_response>\n42\n</tool_response>");
}

TEST(AnswerFormat, ArgumentsOfCallsBecomeObjectsAndBadCallsAreNamed) {
  using json = nlohmann::ordered_json;
  const auto told = CallsForTemplate(json::parse(R"([{"id":"1","function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}}])"));
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(json::parse(*told)[0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto kept = CallsForTemplate(json{{{"function", {{"name", "f"}, {"arguments", "{\"a\":" + deep + "}"}}}}});
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(json::parse(*kept)[0]["function"]["arguments"].is_string());
  for (const char* calls : {"[1]", "[{}]", R"([{"function":{"arguments":"{}"}}])", R"([{"function":{"name":"f"}}])"}) {
    EXPECT_EQ(CallsForTemplate(json::parse(calls)).status().code(), StatusCode::kInvalidArgument) << calls;
  }
}

TEST(AnswerFormat, MarkersThatAreControlTokensAreFound) {
  oscar::testing::TinyVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.Add(oscar::testing::SpellByte(byte));
  const int32_t marker = vocabulary.Add("[TOOL_CALLS]", 3), arguments = vocabulary.Add("[ARGS]", 3);
  const auto tokenizer = Tokenizer::Create(oscar::testing::BytePairMetadata(vocabulary));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const AnswerFormat format = DetectAnswerFormat("{% if tools %}[TOOL_CALLS]{{ n }}[ARGS]{% endif %}");
  EXPECT_EQ(MarkerTokens(**tokenizer, format), (std::vector<int32_t>{marker, arguments}));
  EXPECT_TRUE(MarkerTokens(**tokenizer, DetectAnswerFormat("{% if tools %}<tool_call>{% endif %}")).empty());
  StreamDecoder silent(**tokenizer), shown(**tokenizer, false, {marker});
  EXPECT_EQ(silent.Push(marker), "");
  EXPECT_EQ(shown.Push(marker), "[TOOL_CALLS]");
  EXPECT_EQ(shown.Push(arguments), "");
}

}  // namespace
}  // namespace oscar::engine
