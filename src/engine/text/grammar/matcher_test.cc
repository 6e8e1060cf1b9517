#include "src/engine/text/grammar/matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "src/engine/text/grammar/ebnf.h"
#include "src/engine/text/grammar/grammar_fixture.h"
#include "src/engine/text/grammar/regex.h"
#include "src/io/gguf.h"
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
  const TokenTrie& trie = grammar->trie();
  std::array<int32_t, 256> byte_tokens;
  byte_tokens.fill(-1);
  for (int32_t token = 0; token < trie.num_tokens(); ++token) {
    if (trie.bytes(token).size() == 1) byte_tokens[static_cast<uint8_t>(trie.bytes(token)[0])] = token;
  }
  GrammarMatcher matcher(grammar);
  for (int i = 0; i < steps; ++i) {
    const auto mask = matcher.Mask();
    ASSERT_TRUE(mask.ok());
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < trie.num_tokens(); ++token) {
      if (trie.bytes(token).empty()) continue;
      GrammarMatcher copy = matcher;
      bool fits = true;
      for (const char byte : trie.bytes(token)) {
        const auto one = copy.Mask();
        const int32_t byte_token = byte_tokens[static_cast<uint8_t>(byte)];
        ASSERT_GE(byte_token, 0) << "no token of one byte " << static_cast<int>(byte);
        fits = fits && one.ok() && Allows(**one, byte_token);
        if (!fits) break;
        copy.Accept(byte_token);
      }
      ASSERT_EQ(Allows(**mask, token), fits) << "token " << token << " '" << trie.bytes(token) << "' at step " << i;
      if (fits) allowed.push_back(token);
    }
    for (const int32_t end : trie.end_tokens()) ASSERT_EQ(Allows(**mask, end), matcher.complete());
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
                                      std::string_view("root ::= \"日\" [末-本] | \"é\"{2,3}"), std::string_view("root ::= [a-z]{1,4} \"!\" root?"),
                                      std::string_view("root ::= (\"\\\"\" char{0,3} \"\\\"\" \",\"?)+\nchar ::= [^\"\\\\] | \"\\\\u00\"")}) {
    const auto grammar = OfEbnf(text);
    ASSERT_TRUE(grammar.ok()) << grammar.status().message();
    for (int i = 0; i < 5; ++i) ExpectMasksAreRight(*grammar, rng, 25);
  }
}

// Sets of characters large and small, bounded and not, in rules that call each other.
RuleSet RandomRules(std::mt19937_64& rng) {
  using E = Expression;
  constexpr int kRules = 3;
  const std::vector<std::vector<std::pair<char32_t, char32_t>>> sets = {
      {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}}, {{'a', 'z'}}, {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}}, {{0, 0x10FFFF}}, {{'b', 0x6F00}}, {{'a', 'b'}}, {{0x20, 0x7E}}};
  const auto make = [&](const auto& self, int rule, int depth) -> E {
    const uint64_t kind = rng() % (depth == 0 ? 3 : 7);
    const auto child = [&] { return self(self, rule, depth - 1); };
    const auto least = static_cast<int>(rng() % 3);
    switch (kind) {
      case 0: return E::CodePoints(sets[rng() % sets.size()]);
      case 1: return E::Bytes(std::vector<std::string>{"a", "\"", "ab", "\",", "é"}[rng() % 5]);
      case 2: return rule + 1 < kRules ? E::Rule(rule + 1 + static_cast<int>(rng() % static_cast<uint64_t>(kRules - rule - 1))) : E::CodePoints(sets[rng() % sets.size()]);
      case 3: return E::Sequence({child(), child()});
      case 4: return E::Choice({child(), child()});
      case 5: return E::Repeat(child(), least, E::kNoLimit);
      default: return E::Repeat(child(), least, least + static_cast<int>(rng() % 5));
    }
  };
  RuleSet rules;
  for (int rule = 0; rule < kRules; ++rule) rules.Add("rule" + std::to_string(rule), make(make, rule, 3));
  rules.root = 0;
  return rules;
}

TEST(GrammarMatcher, MasksOfRandomGrammarsAllowWhatTheBytesOfATokenMayBe) {
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  int made = 0;
  for (int i = 0; i < 60; ++i) {
    const auto grammar = Grammar::Create(RandomRules(rng), TestTrie());
    if (!grammar.ok()) continue;
    ++made;
    ASSERT_NO_FATAL_FAILURE(ExpectMasksAreRight(*grammar, rng, 6)) << "grammar " << i;
  }
  EXPECT_GT(made, 40);
}

TEST(TokenTrie, AClassIsItsTokensOfWholeCharactersAndTheRestIsTheOthers) {
  const auto trie = TestTrie();
  CharSet set{.ascii = {}, .others = true};
  for (char c = 'a'; c <= 'z'; ++c) set.ascii[static_cast<size_t>(c)] = true;
  const TokenClass* made = trie->ClassOf(set);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(trie->ClassOf(set), made);
  const auto token = [&](std::string_view text) {
    for (int32_t i = 0;; ++i) {
      if (trie->bytes(i) == text) return i;
    }
  };
  const auto length = [&](std::string_view text) {  // 0: it is of the rest
    const int32_t wanted = token(text);
    int least = 0;
    for (int n = TokenClass::kLongest; n > 0 && HasToken(made->up_to[static_cast<size_t>(n)], wanted); --n) least = n;
    EXPECT_EQ(least == 0, std::ranges::find(made->rest.tokens, wanted) != made->rest.tokens.end()) << text;
    return least;
  };
  for (const auto& [text, wanted] : std::vector<std::pair<std::string_view, int>>{{"a", 1}, {"abc", 3}, {"é", 1}, {"日本ab", 4}, {"true", 4}, {"Ab", 0}, {"b\xC3", 0}, {"\xA9x", 0},
                                                                                 {"\xE6\x97", 0}, {"a\"", 0}, {"aaaaaaaaaaaaaaaaaaaa", 0}}) {
    EXPECT_EQ(length(text), wanted) << text;
  }
}

TEST(GrammarMatcher, MasksOverARealVocabularyAllowWhatTheBytesOfATokenMayBe) {
  const char* folder = std::getenv("OSCAR_TEST_MODELS");
  const std::filesystem::path model = std::filesystem::path(folder == nullptr ? "" : folder) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (folder == nullptr || !std::filesystem::exists(model)) GTEST_SKIP() << "no SmolLM2-135M-Instruct.Q4_1.gguf in OSCAR_TEST_MODELS";
  const auto file = io::GgufFile::Open(model);
  ASSERT_TRUE(file.ok());
  const auto tokenizer = Tokenizer::Create(file->metadata());
  ASSERT_TRUE(tokenizer.ok());
  const auto trie = std::make_shared<const TokenTrie>(**tokenizer);
  std::mt19937_64 rng(oscar::testing::TestSeed(7));
  for (const std::string_view text : {kJson, std::string_view("root ::= \"\\\"\" word{1,3} \"\\\"\"\nword ::= [a-z]{2,4} [^\"]"), std::string_view("root ::= [^<]* \"</\" [a-zA-Z0-9_]+ \">\""),
                                      std::string_view("root ::= (\"\\\"\" char{0,5} \"\\\"\" \",\"?)+\nchar ::= [^\"\\\\] | \"\\\\u00\"")}) {
    const auto rules = ParseEbnf(text);
    ASSERT_TRUE(rules.ok()) << rules.status().message();
    const auto grammar = Grammar::Create(*rules, trie);
    ASSERT_TRUE(grammar.ok());
    for (int i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(ExpectMasksAreRight(*grammar, rng, 6));
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
