#include "src/engine/text/special_tokens.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "src/testing/seeds.h"
#include "src/testing/tiny_vocabulary.h"

namespace oscar::engine {
namespace {

Vocabulary Make(const testing::TinyVocabulary& tiny) {
  auto vocabulary =
      Vocabulary::Create(testing::BytePairMetadata(tiny), TokenSpelling::kByteAlphabet, false);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status().message();
  return std::move(vocabulary).value();
}

TEST(SpecialTokens, TheLeftmostGoesFirstAndThenTheLongest) {
  const uint64_t seed = testing::TestSeed(9);
  std::mt19937_64 rng(seed);
  const auto word = [&rng](size_t longest) {
    std::string text;
    const size_t size = 1 + rng() % longest;
    for (size_t i = 0; i < size; ++i) text.push_back("xy\xFF"[rng() % 3]);
    return text;
  };
  for (int round = 0; round < 1000; ++round) {
    testing::TinyVocabulary tiny;
    std::set<std::string> texts;
    for (int i = 0; i < 12; ++i) texts.insert(word(5));
    for (const std::string& text : texts)
      tiny.Add(text + (text.size() == 1 ? "x" : ""), 1 + static_cast<int64_t>(rng() % 5));
    std::set<std::string> unique(tiny.tokens.begin(), tiny.tokens.end());
    if (unique.size() != tiny.tokens.size()) continue;
    const Vocabulary vocabulary = Make(tiny);
    const SpecialTokens special(vocabulary);
    const std::string text = word(20);
    for (const bool with_control : {false, true}) {
      SpecialTokens::Match expected;
      for (size_t begin = 0; begin < text.size() && expected.size == 0; ++begin) {
        for (size_t i = 0; i < tiny.tokens.size(); ++i) {
          const int64_t type = tiny.types[i];
          const bool counts = type == 4 || (with_control && (type == 2 || type == 3));
          const std::string& token = tiny.tokens[i];
          if (!counts || text.compare(begin, token.size(), token) != 0 ||
              token.size() <= expected.size)
            continue;
          expected = {begin, token.size(), static_cast<int32_t>(i)};
        }
      }
      const SpecialTokens::Match actual = special.Find(text, 0, with_control);
      ASSERT_EQ(actual.id, expected.id) << "seed " << seed << " round " << round;
      if (expected.size > 0) {
        ASSERT_EQ(actual.begin, expected.begin);
        ASSERT_EQ(actual.size, expected.size);
      }
    }
  }
}

}  // namespace
}  // namespace oscar::engine
