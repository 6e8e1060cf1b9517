#include "src/engine/text/utf8.h"

#include <gtest/gtest.h>

namespace oscar::engine {
namespace {

TEST(Utf8, EveryScalarValueIsReadBackAndEveryCutOfItIsIncomplete) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    AppendUtf8(code, &text);
    const Utf8Step step = NextUtf8(text + "x");
    ASSERT_EQ(step.kind, Utf8Kind::kCharacter) << code;
    ASSERT_EQ(step.code_point, code);
    ASSERT_EQ(step.size, text.size());
    for (size_t size = 1; size < text.size(); ++size) {
      const Utf8Step cut = NextUtf8(text.substr(0, size));
      ASSERT_EQ(cut.kind, Utf8Kind::kIncomplete) << code;
      ASSERT_EQ(cut.size, size);
      // What cannot go on is invalid as soon as that is seen, and takes no byte of what follows.
      const Utf8Step broken = NextUtf8(text.substr(0, size) + "x");
      ASSERT_EQ(broken.kind, Utf8Kind::kInvalid);
      ASSERT_EQ(broken.size, size);
    }
  }
}

TEST(Utf8, InvalidBytesAreCutIntoMaximalSubparts) {
  // The Unicode Standard 15, section 3.9, tables 3-8 to 3-11: the sizes of the parts.
  const struct {
    std::string bytes;
    std::vector<size_t> sizes;
  } cases[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82", {1, 1, 1, 1, 1, 1, 1, 1}},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF", {1, 1, 1, 1, 1, 1, 1, 1}},
      {"\xF4\x91\x92\x93\xFF\x80\xBF", {1, 1, 1, 1, 1, 1, 1}},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", {2, 1, 3, 2}},
  };
  for (const auto& [bytes, sizes] : cases) {
    std::string_view rest = bytes;
    std::vector<size_t> actual;
    while (!rest.empty()) {
      const Utf8Step step = NextUtf8(rest);
      EXPECT_NE(step.kind, Utf8Kind::kCharacter);
      actual.push_back(step.size);
      rest.remove_prefix(step.size);
    }
    EXPECT_EQ(actual, sizes);
  }
}

TEST(Utf8, RunsAlternateBetweenValidAndInvalid) {
  const std::string text = "ab\xC3\xA9\xFF\xE1\x80z\xF0\x9F";
  const std::string_view expected[] = {"ab\xC3\xA9", "\xFF\xE1\x80", "z", "\xF0\x9F"};
  std::string_view rest = text;
  for (int i = 0; i < 4; ++i) {
    bool valid = false;
    const std::string_view run = NextUtf8Run(rest, &valid);
    EXPECT_EQ(run, expected[i]);
    EXPECT_EQ(valid, i % 2 == 0);
    rest.remove_prefix(run.size());
  }
  EXPECT_TRUE(rest.empty());
}

}  // namespace
}  // namespace oscar::engine
