#include "src/engine/serve/call_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "src/engine/text/grammar/grammar_fixture.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

using nlohmann::json;

constexpr const char* kWeather = R"({"type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
  "where": {"$ref": "#/$defs/place"}}, "required": ["city", "days"], "$defs": {"place": {"type": "object", "properties": {"north": {"type": "boolean"}}, "required": ["north"]}}})";

ToolUse Tools(ToolUse::Choice choice) {
  ToolUse use;
  use.choice = choice;
  use.tools = {{"weather", kWeather, false}, {"now", R"({"type": "object", "properties": {}})", false}};
  return use;
}

Result<std::shared_ptr<const grammar::Grammar>> Compile(ToolFormat format, const ToolUse& tools, bool call_ids = false) {
  AnswerParser::Options parser{true, format, false, false, nullptr, call_ids};
  grammar::RuleSet rules;
  std::vector<std::string> ignored;
  auto text = CallText({tools, parser}, &rules, &ignored);
  if (!text.ok()) return text.status();
  rules.root = rules.Add("root", *std::move(text));
  return grammar::Grammar::Create(rules, grammar::TestTrie());
}

struct Notation {
  ToolFormat format;
  const char* one;    // a call of weather and nothing else
  const char* other;  // the same in another notation
};

const Notation kNotations[] = {
    {ToolFormat::kHermes, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}\n</tool_call>", "{\"name\": \"weather\", \"arguments\": {}}"},
    {ToolFormat::kLlama3, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 2}}", "{\"name\": \"weather\", \"arguments\": {}}"},
    {ToolFormat::kQwenCoder,
     "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=where>\n"
     "{\"north\": true}\n</parameter>\n</function>\n</tool_call>",
     "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"},
    {ToolFormat::kGlm, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
     "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>two</arg_value>\n</tool_call>"},
    {ToolFormat::kMistral, "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}, {\"name\": \"now\", \"arguments\": {}}]",
     "[TOOL_CALLS] {\"name\": \"now\", \"arguments\": {}}"},
    {ToolFormat::kPythonic, "[weather(city=\"Rome\", days=2, where={\"north\": True}), now()]", "[weather(city=\"Rome\", days=2, where={\"north\": true})]"},
    {ToolFormat::kMistralNamed, "[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\", \"days\": 2}[TOOL_CALLS]now[ARGS]{}", "[TOOL_CALLS]weather{\"city\": \"Rome\"}"},
};

TEST(CallGrammar, TakesCallsInTheModelsNotationAlone) {
  for (const Notation& notation : kNotations) {
    const auto grammar = Compile(notation.format, Tools(ToolUse::Choice::kRequired));
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    EXPECT_TRUE((*grammar)->Matches(notation.one)) << notation.one;
    EXPECT_FALSE((*grammar)->Matches(notation.other)) << notation.other;
    EXPECT_FALSE((*grammar)->Matches("It is warm.")) << notation.one;
  }
}

TEST(CallGrammar, TextMayStandBeforeACallThatNobodyDemands) {
  for (const Notation& notation : kNotations) {
    const auto grammar = Compile(notation.format, Tools(ToolUse::Choice::kAuto));
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    EXPECT_TRUE((*grammar)->Matches("It is warm."));
    EXPECT_TRUE((*grammar)->Matches(notation.one)) << notation.one;
    EXPECT_EQ((*grammar)->Matches(std::string("I look. ") + notation.one), true) << notation.one;
    const std::string marker(CallMarker(notation.format));
    if (!marker.empty()) {
      EXPECT_FALSE((*grammar)->Matches("a " + marker + " b")) << marker;
    }
  }
}

TEST(CallGrammar, OneCallWhereMoreAreNotAllowed) {
  for (const ToolFormat format : {ToolFormat::kMistral, ToolFormat::kMistralNamed, ToolFormat::kPythonic}) {
    ToolUse tools = Tools(ToolUse::Choice::kRequired);
    tools.parallel = false;
    const auto grammar = Compile(format, tools);
    ASSERT_TRUE(grammar.ok());
    for (const Notation& notation : kNotations) {
      if (notation.format == format) {
        EXPECT_FALSE((*grammar)->Matches(notation.one)) << notation.one;
      }
    }
  }
}

TEST(CallGrammar, CallIdsStandWhereTheTemplateHasThem) {
  constexpr const char* kCall = "[TOOL_CALLS]now[CALL_ID]abcdefgh1[ARGS]{}";
  EXPECT_TRUE((*Compile(ToolFormat::kMistralNamed, Tools(ToolUse::Choice::kRequired), true))->Matches(kCall));
  EXPECT_FALSE((*Compile(ToolFormat::kMistralNamed, Tools(ToolUse::Choice::kRequired), false))->Matches(kCall));
}

TEST(CallGrammar, WhatTheNotationCannotKeepToIsRefusedOrNamed) {
  ToolUse tools = Tools(ToolUse::Choice::kRequired);
  tools.tools[0].parameters = R"({"properties": {"a": {"type": "string", "pattern": "x+"}}})";
  EXPECT_TRUE(Compile(ToolFormat::kGlm, tools).ok());
  tools.tools[0].strict = true;
  EXPECT_EQ(Compile(ToolFormat::kGlm, tools).status().code(), StatusCode::kUnsupported);
  tools.tools[0].parameters = R"({"properties": {"a<b": {"type": "integer"}}})";
  EXPECT_EQ(Compile(ToolFormat::kQwenCoder, tools).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(Compile(ToolFormat::kHermes, tools).ok());
}

TEST(CallGrammar, PythonHasItsWordsForJsons) {
  ToolUse tools;
  tools.choice = ToolUse::Choice::kRequired;
  tools.tools = {{"f", R"({"properties": {"a": {"enum": [true, null, {"x": [false]}]}, "b": {"type": ["boolean", "null"]}, "c": {"const": "True"}, "d": {}}})", false},
                 {"g", "", false}};
  const auto grammar = Compile(ToolFormat::kPythonic, tools);
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const char* text : {"[f()]", "[f(a=True, b=None)]", "[f(a=None, c=\"True\")]", "[f(a={\"x\": [False]})]", "[f(b=False, d=[None, {\"k\": True}])]", "[g()]", "[g(x_1=1, y=\"\")]",
                           "[g(), f(d=2)]"}) {
    EXPECT_TRUE((*grammar)->Matches(text)) << text;
  }
  for (const char* text : {"[f(a=true)]", "[f(b=null)]", "[f(b=None, a=True)]", "[f(,)]", "[f(a=True,b=None)]", "[g(1)]", "[g(1x=1)]", "[]"}) {
    EXPECT_FALSE((*grammar)->Matches(text)) << text;
  }
  tools.tools[0].parameters = R"({"properties": {"a-b": {}}})";
  EXPECT_EQ(Compile(ToolFormat::kPythonic, tools).status().code(), StatusCode::kUnsupported);
}

TEST(CallGrammar, NoOtherTextWhereAConstraintStandsInstead) {
  for (const Notation& notation : kNotations) {
    const ToolUse tools = Tools(ToolUse::Choice::kAuto);
    grammar::RuleSet rules;
    std::vector<std::string> ignored;
    auto text = CallText({tools, {true, notation.format, false, false}, /*no_text=*/true}, &rules, &ignored);
    ASSERT_TRUE(text.ok());
    rules.root = rules.Add("root", *std::move(text));
    const auto grammar = grammar::Grammar::Create(rules, grammar::TestTrie());
    EXPECT_TRUE((*grammar)->Matches(notation.one)) << notation.one;
    EXPECT_FALSE((*grammar)->Matches("It is warm.")) << notation.one;
  }
}

TEST(CallGrammar, TextsAreKnownByTheirSchemas) {
  ToolUse tools;
  tools.tools = {{"f", R"({"properties": {"a": {"type": "string"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "c": {"$ref": "#/$defs/t"}, "d": {"type": "integer"},
                          "e": {"enum": ["x", 1]}, "g": {"const": "y"}, "h": {}}, "$defs": {"t": {"type": ["string", "null"]}}})", false}};
  EXPECT_EQ(*TextParametersOf(tools), (TextParameters{{"f", {"a", "b", "c", "g"}}}));
}

// As DrawText; a text between markers ends by its marker, which nobody draws by chance.
std::string DrawCalls(const std::shared_ptr<const grammar::Grammar>& grammar, std::string_view end, std::mt19937_64& rng) {
  constexpr int kMost = 30;
  grammar::GrammarMatcher matcher(grammar);
  std::string text;
  for (int i = 0; i < 100 * kMost; ++i) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) break;
    if (grammar::Allows(**mask, grammar::kEnd) && (i > kMost || rng() % 4 == 0)) return text;
    size_t matched = end.size() - 1;
    while (matched > 0 && !text.ends_with(end.substr(0, matched))) --matched;
    std::vector<int32_t> allowed, closing;
    for (int32_t token = 0; token < grammar->trie().num_tokens(); ++token) {
      if (token == grammar::kEnd || !grammar::Allows(**mask, token)) continue;
      allowed.push_back(token);
      if (grammar->trie().bytes(token) == end.substr(matched, 1)) closing.push_back(token);
    }
    if (allowed.empty()) return text;
    const std::vector<int32_t>& from = !closing.empty() && (i > kMost || rng() % 2 == 0) ? closing : allowed;
    const int32_t token = from[rng() % from.size()];
    matcher.Accept(token);
    text += grammar->trie().bytes(token);
  }
  ADD_FAILURE() << "no end: " << text.substr(0, 200);
  return "";
}

// Whatever is drawn under the grammar, the parser finds calls whose arguments are what the schema says.
TEST(CallGrammar, EveryTextOfTheGrammarIsCallsWithValidArguments) {
  std::mt19937_64 rng(oscar::testing::TestSeed(17));
  const ToolUse tools = Tools(ToolUse::Choice::kRequired);
  for (const Notation& notation : kNotations) {
    const auto grammar = Compile(notation.format, tools);
    ASSERT_TRUE(grammar.ok());
    int found = 0;
    for (int i = 0; i < 40; ++i) {
      const bool between = notation.format == ToolFormat::kQwenCoder || notation.format == ToolFormat::kGlm;
      const std::string text = between ? DrawCalls(*grammar, notation.format == ToolFormat::kGlm ? "</arg_value>" : "</parameter>", rng) : grammar::DrawText(*grammar, rng, 30);
      AnswerParser parser({true, notation.format, false, false, TextParametersOf(tools)});
      std::vector<AnswerPart> parts = parser.Push(text);
      for (AnswerPart& part : parser.Finish()) parts.push_back(std::move(part));
      std::vector<std::pair<std::string, std::string>> calls;
      for (const AnswerPart& part : parts) {
        EXPECT_NE(part.kind, AnswerPart::Kind::kContent) << text;
        if (part.kind == AnswerPart::Kind::kCall) calls.emplace_back(part.text, "");
        if (part.kind == AnswerPart::Kind::kArguments) calls.at(static_cast<size_t>(part.call)).second += part.text;
      }
      EXPECT_FALSE(calls.empty()) << text;
      EXPECT_EQ(parser.num_calls(), static_cast<int>(calls.size())) << text;
      for (const auto& [name, arguments] : calls) {
        const json value = json::parse(arguments, nullptr, /*allow_exceptions=*/false);
        ASSERT_TRUE(value.is_object()) << text << "\n" << arguments;
        if (name == "now") continue;
        ++found;
        EXPECT_TRUE(value["city"].is_string()) << arguments;
        EXPECT_TRUE(value["days"].is_number_integer() && value["days"] >= 1 && value["days"] <= 9) << arguments;
        if (value.contains("where")) {
          EXPECT_TRUE(value["where"]["north"].is_boolean()) << arguments;
        }
        if (value.contains("unit")) {
          EXPECT_TRUE(value["unit"] == "C" || value["unit"] == "F") << arguments;
        }
      }
    }
    EXPECT_GT(found, 5);
  }
}

}  // namespace
}  // namespace oscar::engine
