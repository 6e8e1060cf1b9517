#include "src/engine/text/pretokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "src/engine/text/utf8.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

std::vector<std::string> Words(std::string_view name, std::string_view text) {
  const auto pretokenizer = Pretokenizer::Create(name);
  EXPECT_TRUE(pretokenizer.ok()) << pretokenizer.status().message();
  PatternMatcher matcher;
  std::vector<std::string_view> words;
  EXPECT_TRUE(pretokenizer->Split(text, &matcher, &words).ok());
  return {words.begin(), words.end()};
}

using List = std::vector<std::string>;

TEST(Pretokenizer, Gpt2SplitsContractionsWordsNumbersAndTheRest) {
  EXPECT_EQ(Words("gpt-2", ""), List());
  EXPECT_EQ(Words("gpt-2", "I'll pay $1234.56  now!!\n\n\tok "),
            (List{"I", "'ll", " pay", " $", "1234", ".", "56", " ", " now", "!!", "\n\n", "\t",
                  "ok", " "}));
  EXPECT_EQ(Words("gpt-2", "DON'T"), (List{"DON", "'", "T"}));
}

TEST(Pretokenizer, SmollmSplitsDigitsFirst) {
  // So the spaces before a digit are a piece of their own, and none of them leads the digit's word.
  EXPECT_EQ(Words("smollm", "a 12\xC2\xBD  x"), (List{"a", " ", "1", "2", "\xC2\xBD", " ", " x"}));
  EXPECT_EQ(Words("smollm", "x   7"), (List{"x", "   ", "7"}));
  EXPECT_EQ(Words("starcoder", "x   7"), (List{"x", "   ", "7"}));
  EXPECT_EQ(Words("gpt-2", "x   7"), (List{"x", "  ", " 7"}));
}

TEST(Pretokenizer, Llama3AndQwen2DifferInDigits) {
  const std::string text = "Hello,world's 12345 \r\n  (x)!\n\n y";
  EXPECT_EQ(Words("llama-bpe", text), (List{"Hello", ",world", "'s", " ", "123", "45", " \r\n", " ",
                                            " (", "x", ")!\n\n", " y"}));
  EXPECT_EQ(Words("qwen2", text), (List{"Hello", ",world", "'s", " ", "1", "2", "3", "4", "5",
                                        " \r\n", " ", " (", "x", ")!\n\n", " y"}));
  EXPECT_EQ(Words("llama3", text), Words("llama-v3", text));
  EXPECT_EQ(Words("qwen2", "WE'LL it'\xC5\xBF"),
            (List{"WE", "'LL", " it", "'\xC5\xBF"}));  // U+017F is an s
}

TEST(Pretokenizer, SpacesAreThoseOfUnicodeWithoutTheMongolianSeparator) {
  for (const uint32_t code : {0x85u, 0xA0u, 0x2003u, 0x2028u, 0x3000u}) {
    std::string space, text = ".";
    AppendUtf8(code, &space);
    text.append(space).append(".");
    EXPECT_EQ(Words("gpt-2", text), (List{".", space, "."})) << code;
  }
  EXPECT_EQ(Words("gpt-2", ".\xE1\xA0\x8E."), (List{".\xE1\xA0\x8E."}));  // U+180E
}

TEST(Pretokenizer, WordsAreTheWholeTextInOrder) {
  const uint64_t seed = testing::TestSeed(7);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 1500; ++round) {
    std::string text;
    const uint64_t size = rng() % 40;
    for (uint64_t i = 0; i < size; ++i) {
      const uint32_t common[] = {' ', ' ', '\n', '\r', '\t',  '\'',   's',
                                 'a', '7', '.',  0xA0, 0x301, 0x4E2D, 0x1F600};
      const auto any = static_cast<uint32_t>(rng() % 0x110000);
      const uint32_t code = rng() % 3 == 0 ? any : common[rng() % std::size(common)];
      if (code < 0xD800 || code >= 0xE000) AppendUtf8(code, &text);
    }
    for (const char* name : {"gpt-2", "smollm", "llama3", "qwen2"}) {
      std::string joined;
      for (const std::string& word : Words(name, text)) {
        EXPECT_FALSE(word.empty());
        joined += word;
      }
      ASSERT_EQ(joined, text) << name << " seed " << seed << " round " << round;
    }
  }
}

TEST(Pretokenizer, AnUnknownNameIsUnsupportedAndNamed) {
  for (const std::string name : {"default", "", "gpt-2 ", "tekken"}) {
    const auto pretokenizer = Pretokenizer::Create(name);
    ASSERT_FALSE(pretokenizer.ok());
    EXPECT_EQ(pretokenizer.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(pretokenizer.status().message().find("no pre-tokenizer \"" + name + "\""),
              std::string::npos);
    EXPECT_NE(pretokenizer.status().message().find("qwen2"), std::string::npos);
  }
}

}  // namespace
}  // namespace oscar::engine
