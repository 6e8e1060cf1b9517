#include "src/engine/text/pattern.h"

#include <gtest/gtest.h>

#include <string>

namespace oscar::engine {
namespace {

TEST(Pattern, FindsMatchesOfUnicodeClasses) {
  const auto letters = Pattern::Compile(R"(\p{L}+)");
  ASSERT_TRUE(letters.ok());
  PatternMatcher matcher;
  const std::string text = "1 \xC3\xA9t\xC3\xA9 2";
  auto match = matcher.Find(*letters, text, 0);
  ASSERT_TRUE(match.ok() && *match);
  EXPECT_EQ(text.substr((*match)->begin, (*match)->end - (*match)->begin), "\xC3\xA9t\xC3\xA9");
  match = matcher.Find(*letters, text, (*match)->end);
  ASSERT_TRUE(match.ok());
  EXPECT_FALSE(*match);
}

TEST(Pattern, SkipsEmptyMatches) {
  const auto pattern = Pattern::Compile("b*");
  PatternMatcher matcher;
  const auto match = matcher.Find(*pattern, "aabb", 0);
  ASSERT_TRUE(match.ok() && *match);
  EXPECT_EQ((*match)->begin, 2u);
}

TEST(Pattern, AFaultyPatternIsNamed) {
  const auto pattern = Pattern::Compile("a(b");
  ASSERT_FALSE(pattern.ok());
  EXPECT_EQ(pattern.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(pattern.status().message().find("a(b"), std::string::npos);
}

TEST(Pattern, EndlessBacktrackingIsAnError) {
  const auto pattern = Pattern::Compile("(?:a|a)*[cd]");
  PatternMatcher matcher;
  const auto match = matcher.Find(*pattern, std::string(64, 'a') + "b", 0);
  ASSERT_FALSE(match.ok());
  EXPECT_EQ(match.status().code(), StatusCode::kResourceExhausted);
}

TEST(Pattern, DeepBacktrackingIsAnErrorAndNotAnOverflow) {
  const auto pattern = Pattern::Compile("(?:(a|b)(c?))*d");
  PatternMatcher matcher;
  const auto match = matcher.Find(*pattern, std::string(1 << 20, 'a'), 0);
  ASSERT_FALSE(match.ok());
  EXPECT_EQ(match.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(match.status().message().find("1048576"), std::string::npos)
      << match.status().message();
}

}  // namespace
}  // namespace oscar::engine
