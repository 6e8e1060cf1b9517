#include "src/engine/text/grammar/matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "src/engine/text/grammar/ebnf.h"
#include "src/engine/text/grammar/grammar_fixture.h"
#include "src/engine/text/grammar/regex.h"
#include "src/testing/seeds.h"

namespace oscar::engine::grammar {
namespace {

using ::testing::HasSubstr;

Result<std::shared_ptr<const Grammar>> OfEbnf(std::string_view text) {
  auto rules = ParseEbnf(text);
  if (!rules.ok()) return rules.status();
  return Grammar::Create(*rules, TestTrie());
}

std::shared_ptr<const Grammar> OfRegex(std::string_view pattern, bool whole = true) {
  auto expression = ParseRegex(pattern, {.whole = whole});
  EXPECT_TRUE(expression.ok()) << pattern << ": " << expression.status().message();
  RuleSet rules;
  rules.Add("root", *expression);
  auto made = Grammar::Create(rules, TestTrie());
  EXPECT_TRUE(made.ok()) << pattern << ": " << made.status().message();
  return *made;
}

// Each token must be allowed exactly when its bytes can be read one by one: that asks the automaton alone, and none of the shortcuts of masks.
void ExpectMasksAreRight(const std::shared_ptr<const Grammar>& grammar, std::mt19937_64& rng, int steps) {
  GrammarMatcher matcher(grammar);
  for (int i = 0; i < steps; ++i) {
    const auto mask = matcher.Mask();
    ASSERT_TRUE(mask.ok());
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < grammar->trie().num_tokens(); ++token) {
      if (token == kEnd) continue;
      GrammarMatcher copy = matcher;
      bool fits = true;
      for (const char byte : grammar->trie().bytes(token)) {
        const auto one = copy.Mask();
        fits = fits && one.ok() && Allows(**one, static_cast<uint8_t>(byte));
        if (!fits) break;
        copy.Accept(static_cast<uint8_t>(byte));
      }
      ASSERT_EQ(Allows(**mask, token), fits) << "token " << token << " '" << grammar->trie().bytes(token) << "' at step " << i;
      if (fits) allowed.push_back(token);
    }
    ASSERT_EQ(Allows(**mask, kEnd), matcher.complete());
    if (allowed.empty()) return;
    matcher.Accept(allowed[rng() % allowed.size()]);
  }
}

constexpr std::string_view kJson = R"(root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (string ":" " "? value ("," " "? string ":" " "? value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\nu])* "\""
number ::= "-"? [0-9]+ ("." [0-9]+)?)";

TEST(GrammarMatcher, MasksAllowWhatTheBytesOfATokenMayBe) {
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  for (const std::string_view text : {kJson, std::string_view("root ::= \"a\" root \"b\" | \"c\"*"), std::string_view("root ::= (\"ab\" | \"abc\" | \"a\") \"ba\"? \"b\"+"),
                                      std::string_view("root ::= \"日\" [末-本] | \"é\"{2,3}")}) {
    const auto grammar = OfEbnf(text);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    for (int i = 0; i < 5; ++i) ExpectMasksAreRight(*grammar, rng, 25);
  }
}

TEST(GrammarMatcher, TextsDrawnUnderMasksFitTheGrammar) {
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  const auto grammar = OfEbnf(kJson);
  ASSERT_TRUE(grammar.ok());
  for (int i = 0; i < 200; ++i) {
    const std::string text = DrawText(*grammar, rng, 20);
    EXPECT_TRUE((*grammar)->Matches(text)) << text;
  }
}

TEST(GrammarMatcher, RegularExpressionsFitWhatTheStandardLibraryFits) {
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  for (const char* pattern : {"a*b", "(a|b)*abb", "[a-c]{2,4}d?", "(ab|ba)+", "a?b?c?", "[^ab]{1,2}", "(a{2}){2,3}", "a+?b", "\\d{2}-\\w+", "(?:ab)*|c", "", "a|"}) {
    const auto grammar = OfRegex(pattern);
    const std::regex judge(pattern);
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (size_t n = rng() % 7; n > 0; --n) text += "abcd-01"[rng() % 7];
      EXPECT_EQ(grammar->Matches(text), std::regex_match(text, judge)) << pattern << " on " << text;
    }
  }
}

TEST(GrammarMatcher, APatternFitsAnywhereUnlessAnchored) {
  for (const char* pattern : {"ab", "^ab", "ab$", "^ab$", "^a|b$"}) {
    const auto grammar = OfRegex(pattern, /*whole=*/false);
    const std::regex judge(pattern);
    for (const char* text : {"ab", "xab", "abx", "xabx", "a", "b", "axb", ""}) EXPECT_EQ(grammar->Matches(text), std::regex_search(text, judge)) << pattern << " on " << text;
  }
}

TEST(GrammarMatcher, TextBeforeAMarkerIsFreeAndTheMarkerIsFoundAtOnce) {
  RuleSet rules;
  rules.Add("root", Expression::Sequence({Expression::Repeat(Expression::Sequence({Expression::Until("aab"), Expression::Bytes("!")}), 0, Expression::kNoLimit),
                                          Expression::Without("aab")}));
  const auto grammar = Grammar::Create(rules, TestTrie());
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  for (const char* text : {"", "aa", "xaab!", "aaab!aa", "aab!aab!", "ab"}) EXPECT_TRUE((*grammar)->Matches(text)) << text;
  for (const char* text : {"aab", "aaab", "aab?", "xaabaab!"}) EXPECT_FALSE((*grammar)->Matches(text)) << text;
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  for (int i = 0; i < 20; ++i) ExpectMasksAreRight(*grammar, rng, 10);
}

TEST(GrammarMatcher, RangesOfCodePointsAreThoseOfUnicode) {
  const auto grammar = OfEbnf("root ::= [\\u0061-\\u3042\\U0001F600]");
  ASSERT_TRUE(grammar.ok());
  for (const char* text : {"a", "z", "é", "あ", "😀"}) EXPECT_TRUE((*grammar)->Matches(text)) << text;
  for (const char* text : {"A", "ぃ", "😁", "", "\xC3", "ab"}) EXPECT_FALSE((*grammar)->Matches(text)) << text;
}

TEST(Grammar, WhatCannotBeKeptToIsRefusedByName) {
  const auto error = [](std::string_view text) {
    const auto made = OfEbnf(text);
    return made.ok() ? std::string("none") : made.status().message();
  };
  EXPECT_THAT(error("root ::= root \"a\" | \"b\""), HasSubstr("root calls itself"));
  EXPECT_THAT(error("root ::= x\nx ::= \"\" y\ny ::= x \"a\""), HasSubstr("calls itself"));
  EXPECT_THAT(error("root ::= \"a\" root"), HasSubstr("no text fits"));
  EXPECT_THAT(error("root ::= ((\"a\"{1000}){1000}){1000}"), HasSubstr("more than 200000 states"));
  EXPECT_THAT(error("root ::= other"), HasSubstr("other is not defined"));
  EXPECT_THAT(error("x ::= \"a\""), HasSubstr("no rule root"));
  for (const char* text : {"root ::= \"a", "root ::= [a", "root ::= (\"a\"", "root ::= \"a\"{3,2}", "root = \"a\"", "root ::= *", "root ::= \"a\"\nroot ::= \"b\"", "root ::= [b-a]"}) {
    EXPECT_THAT(error(text), HasSubstr("grammar")) << text;
  }
}

TEST(Regex, WhatIsLeftOutOrWrongIsRefused) {
  for (const char* pattern : {"(?=a)", "(?!a)", "(?<=a)b", "\\1", "\\bword", "\\p{L}"}) EXPECT_EQ(ParseRegex(pattern, {}).status().code(), StatusCode::kUnsupported) << pattern;
  for (const char* pattern : {"(", ")", "[", "a{2", "*", "[b-a]", "\\", "a(^b)", "\\u12"}) EXPECT_EQ(ParseRegex(pattern, {}).status().code(), StatusCode::kInvalidArgument) << pattern;
}

}  // namespace
}  // namespace oscar::engine::grammar
