#include "src/engine/text/grammar/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/engine/text/grammar/grammar_fixture.h"
#include "src/testing/seeds.h"

namespace oscar::engine::grammar {
namespace {

using json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::shared_ptr<const Grammar>> Compile(std::string_view schema, bool strict = false, std::vector<std::string>* ignored = nullptr) {
  RuleSet rules;
  const auto root = AddJsonSchema(json::parse(schema), {.strict = strict}, &rules, ignored);
  if (!root.ok()) return root.status();
  rules.root = *root;
  return Grammar::Create(rules, TestTrie());
}

struct Case {
  const char* schema;
  std::vector<const char*> fit, unfit;
};

// `unfit`: texts that do not validate; the grammar may leave out more than these.
const std::vector<Case>& Cases() {
  static const std::vector<Case> kCases = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a": 1})", R"({"a":1,"b":"x"})", R"({ "a": -12, "b": "\u00e9" })"}, {R"({})", R"({"b":"x"})", R"({"a":1.5})", R"({"a":"1"})", R"({"a":1,})", R"({"a":01})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}}})", {R"({})", R"({"a":1})", R"({"b":1})", R"({"a":1,"c":[]})", R"({"b":{},"c":null})"}, {R"({,"b":1})", R"({"a":1 "b":2})"}},
      {R"({"type":"object","properties":{"name":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {R"({})", R"({"name":null})", R"({"name":null,"nam":1})", R"({"names":1,"x":2})", R"({"":3})"}, {R"({"x":"y"})", R"({"name":1})", R"({"name":null,"name":1})"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3})", {"[true]", "[true, false,true]"}, {"[]", "[true,true,true,true]", "[1]", "[true,]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1})",
       {"[1]", R"([1,"a"])", R"([1,"a",null,null])"}, {"[]", R"(["a"])", "[1,null]"}},
      {R"({"type":"integer","minimum":-3,"exclusiveMaximum":120})", {"-3", "-1", "0", "7", "99", "119"}, {"-4", "120", "1.5", "-0.1", "1000"}},
      {R"({"type":"integer","minimum":187,"maximum":1203})", {"187", "199", "200", "999", "1000", "1203"}, {"186", "1204", "18", "0187"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", R"("日本é")", R"("a\n")"}, {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type":"string","pattern":"^[a-z]+\"?$"})", {R"("ab")", R"("ab\"")"}, {R"("")", R"("a1")"}},
      {R"({"type":"string","pattern":"x"})", {R"("x")", R"("axb")", R"("\nx\\")"}, {R"("a")"}},
      {R"({"enum":["red",3,null,{"a":[1]}]})", {R"("red")", "3", "null", R"({"a":[1]})"}, {R"("blue")", "4"}},
      {R"({"const":"a\"b"})", {R"("a\"b")"}, {R"("a")"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","enum":["x"]}]})", {"1", R"("x")"}, {R"("y")", "null"}},
      {R"({"type":["string","null"]})", {R"("s")", "null"}, {"1"}},
      {R"({"type":"object","properties":{"kind":{"type":"string"}},"required":["kind"],"oneOf":[{"properties":{"kind":{"const":"a"},"x":{"type":"integer"}},"required":["kind","x"]},
        {"properties":{"kind":{"const":"b"}},"required":["kind"]}]})", {R"({"kind":"a","x":1})", R"({"kind":"b"})"}, {R"({"kind":"a"})", R"({"kind":"c"})"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":1}},"required":["a"]},{"properties":{"b":{"type":"null"},"a":{"maximum":5}},"required":["b"]}]})",
       {R"({"a":1,"b":null})", R"({"a":5,"b":null})"}, {R"({"a":6,"b":null})", R"({"a":1})", R"({"b":null})"}},
      {R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/node"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}},
      {R"({"type":"string","format":"date"})", {R"("2026-02-28")", R"("1999-12-31")"}, {R"("2026-02-30")", R"("2026-13-01")", R"("0000-01-01")"}},
      {R"({"type":"string","format":"date-time"})", {R"("2026-11-30T10:00:00Z")", R"("2026-11-30T10:00:00.5+01:00")"}, {R"("2026-11-30")", R"("2026-11-30T25:00:00Z")"}},
      {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
      {R"({"type":"number"})", {"1", "-0.5", "1e10", "12.25E-3"}, {"1.", ".5", "+1", "NaN"}},
      {R"(true)", {"[]", R"({"a":[1,{"b":null}]})", "1"}, {"", "[1"}},
  };
  return kCases;
}

TEST(JsonSchema, FitsDocumentsThatValidateAndNoneThatDoNot) {
  for (const Case& c : Cases()) {
    const auto grammar = Compile(c.schema, /*strict=*/true);
    ASSERT_TRUE(grammar.ok()) << c.schema << ": " << grammar.status().message();
    for (const char* text : c.fit) EXPECT_TRUE((*grammar)->Matches(text)) << c.schema << " should fit " << text;
    for (const char* text : c.unfit) EXPECT_FALSE((*grammar)->Matches(text)) << c.schema << " should not fit " << text;
  }
}

TEST(JsonSchema, EveryDrawnTextIsJson) {
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  for (const Case& c : Cases()) {
    const auto grammar = Compile(c.schema);
    ASSERT_TRUE(grammar.ok());
    for (int i = 0; i < 30; ++i) {
      const std::string text = DrawText(*grammar, rng, 30);
      EXPECT_TRUE(json::accept(text)) << c.schema << " drew " << text;
    }
  }
}

TEST(JsonSchema, KeywordsThatAreNotUnderstoodAreNamedOrRefused) {
  const char* schema = R"({"type":"array","items":{"type":"number","multipleOf":2},"uniqueItems":true,"title":"t","description":"d"})";
  std::vector<std::string> ignored;
  EXPECT_TRUE(Compile(schema, false, &ignored).ok());
  std::ranges::sort(ignored);
  EXPECT_THAT(ignored, ElementsAre("multipleOf", "uniqueItems"));
  const auto strict = Compile(schema, /*strict=*/true);
  EXPECT_EQ(strict.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(strict.status().message(), HasSubstr("multipleOf"));
}

TEST(JsonSchema, LongListsAndManyBranchesNeedNoDeepStackAndEnd) {
  std::string items, ones, others;
  for (int i = 0; i < 6000; ++i) items += (i > 0 ? "," : "") + std::string("{}");
  EXPECT_TRUE(Compile(R"({"prefixItems":[)" + items + R"(],"minItems":3000})").ok());
  for (int i = 0; i < 200; ++i) {
    ones += (i > 0 ? "," : "") + std::string(R"({"properties":{"a":{"const":)") + std::to_string(i) + "}}}";
    others += (i > 0 ? "," : "") + std::string(R"({"properties":{"b":{"const":)") + std::to_string(i) + R"(}},"required":["b"]})";
  }
  const auto made = Compile(R"({"anyOf":[)" + ones + R"(],"oneOf":[)" + others + "]}");
  EXPECT_EQ(made.status().code(), StatusCode::kResourceExhausted) << made.status().message();
}

TEST(JsonSchema, WhatNoDocumentFitsOrNoGrammarSaysIsRefused) {
  for (const auto& [schema, part] : {std::pair{R"({"$ref":"http://a/b"})", "only references into the schema"}, std::pair{R"({"$ref":"#/no"})", "no such part"},
                                     std::pair{R"({"type":"king"})", "no type king"}, std::pair{R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
                                     std::pair{R"({"type":"integer","minimum":3,"maximum":2})", "no text fits"}, std::pair{R"x({"type":"string","pattern":"(?=x)"})x", "look-around"},
                                     std::pair{R"({"allOf":[{"type":"string"},{"type":"null"}]})", "type"}, std::pair{R"({"$ref":"#"})", "calls itself"},
                                     std::pair{R"({"type":"string","minLength":90000,"maxLength":99999})", "states"}, std::pair{R"({"enum":[]})", "enum"},
                                     std::pair{R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text fits"}}) {
    const auto made = Compile(schema);
    ASSERT_FALSE(made.ok()) << schema;
    EXPECT_THAT(made.status().message(), HasSubstr(part)) << schema;
  }
}

}  // namespace
}  // namespace oscar::engine::grammar
