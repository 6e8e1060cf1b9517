#include "src/engine/text/normalizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/engine/text/utf8.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

std::string Text(std::initializer_list<uint32_t> code_points) {
  std::string text;
  for (const uint32_t code : code_points) AppendUtf8(code, &text);
  return text;
}

TEST(Normalizer, ComposesAsTheStandardSays) {
  // UAX #15, tables 4 to 6 and figures 3 to 5, and NormalizationTest.txt lines of each kind.
  const struct {
    std::string text, expected;
  } cases[] = {
      {"", ""},
      {"plain\n\t\x7F", "plain\n\t\x7F"},
      {Text({'e', 0x301}), Text({0xE9})},
      {Text({0xE9}), Text({0xE9})},
      {Text({0x1E9B, 0x323}), Text({0x1E9B, 0x323})},
      {Text({'d', 0x307, 0x323}), Text({0x1E0D, 0x307})},
      {Text({'q', 0x307, 0x323}), Text({'q', 0x323, 0x307})},
      {Text({0x212B}), Text({0xC5})},  // singleton
      {Text({0x2126}), Text({0x3A9})},
      {Text({0x958}), Text({0x915, 0x93C})},             // composition exclusion
      {Text({0x1112, 0x1161, 0x11AB}), Text({0xD55C})},  // Hangul L V T
      {Text({0xD558, 0x11AB}), Text({0xD55C})},
      {Text({0xAC01, 0x11A8}), Text({0xAC01, 0x11A8})},  // no second final consonant
      {Text({0xFB01}), Text({0xFB01})},                  // compatibility characters stay
      {Text({0x1D15E}), Text({0x1D157, 0x1D165})},
      {Text({'a', 0x5AE, 0x300, 0x315, 'b'}), Text({0xE0, 0x5AE, 0x315, 'b'})},
      {Text({0x301, 'a'}), Text({0x301, 'a'})},
      {Text({'a', 0x301, 0x301}), Text({0xE1, 0x301})},
      {Text({'>', 0x338}), Text({0x226F})},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(NormalizeNfc(text), expected) << text;
}

TEST(Normalizer, IsIdempotentOnRandomText) {
  const uint64_t seed = testing::TestSeed(11);
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) {
      const uint32_t low[] = {0x20, 0x300, 0x1100, 0xAC00, 0x900, 0x1D100, 0};
      const uint32_t size[] = {0x200, 0x70, 0x100, 0x2BA4, 0x400, 0x100, 0x10FFFF};
      const size_t range = rng() % 7;
      const auto code = static_cast<uint32_t>(low[range] + rng() % size[range]);
      if (code < 0xD800 || code >= 0xE000) AppendUtf8(code, &text);
    }
    const std::string once = NormalizeNfc(text);
    ASSERT_EQ(NormalizeNfc(once), once) << "seed " << seed << " round " << round;
  }
}

TEST(Normalizer, OrdersAVeryLongRunOfMarks) {
  // Alternating classes, the worst case of an ordering by neighbours: quadratic, this test would
  // not end.
  std::string text = "x";
  for (int i = 0; i < 300'000; ++i) text += Text({0x301, 0x316});
  const std::string normalized = NormalizeNfc(text);
  ASSERT_EQ(normalized.size(), text.size());
  EXPECT_EQ(normalized.substr(0, 1 + 600'000).find(Text({0x301})), std::string::npos);
  EXPECT_EQ(normalized.find(Text({0x316}), 1 + 600'000), std::string::npos);
}

}  // namespace
}  // namespace oscar::engine
