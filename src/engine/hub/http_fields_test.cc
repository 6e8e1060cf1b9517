#include "src/engine/hub/http_fields.h"

#include <string>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

TEST(HttpFields, AContentRangeIsReadExactly) {
  EXPECT_EQ(ParseContentRange("bytes 10-19/100"), (ContentRange{10, 19, 100}));
  EXPECT_EQ(ParseContentRange("bytes 0-0/1"), (ContentRange{0, 0, 1}));
  EXPECT_EQ(ParseContentRange("bytes 10-19/*"), (ContentRange{10, 19, std::nullopt}));
}

TEST(HttpFields, AContentRangeThatBreaksItsGrammarIsAbsent) {
  for (const char* text : {"", "bytes", "bytes ", "bytes */100", "bytes 10-19", "bytes 10-19/", "bytes 19-10/100", "bytes 10-19/19",
                           "bytes 10-100/100", "bytes -5/100", "bytes +1-2/3", "bytes 1-2/3x", "bytes 1- 2/3", "items 1-2/3",
                           "bytes 1-2/9223372036854775808", "bytes 1-99999999999999999999/*"}) {
    EXPECT_EQ(ParseContentRange(text), std::nullopt) << text;
  }
}

TEST(HttpFields, AByteCountIsDigitsOnly) {
  EXPECT_EQ(ParseByteCount("0"), 0u);
  EXPECT_EQ(ParseByteCount("9223372036854775807"), 9223372036854775807u);
  for (const char* text : {"", "-1", "+1", "1.5", "1 ", "0x10", "1, 1", "9223372036854775808"}) {
    EXPECT_EQ(ParseByteCount(text), std::nullopt) << text;
  }
}

TEST(HttpFields, OnlyAStrongPrintableEtagIsUsed) {
  EXPECT_EQ(StrongEtag("\"abc-1\""), "\"abc-1\"");
  EXPECT_EQ(StrongEtag("\"\""), "\"\"");
  for (const std::string text : {"", "\"", "abc", "W/\"abc\"", "\"a\"b\"", "\"a b\"", "\"a\nb\"", "\"\xc3\xa9\""}) {
    EXPECT_EQ(StrongEtag(text), "") << text;
  }
  EXPECT_EQ(StrongEtag(Quoted(std::string(300, 'a'))), "");
}

TEST(HttpFields, ASha256IsFoundInAnyEtagForm) {
  const std::string hex(64, 'a');
  EXPECT_EQ(Sha256FromEtag(Quoted(hex)), hex);
  EXPECT_EQ(Sha256FromEtag("W/\"" + hex + "\""), hex);
  EXPECT_EQ(Sha256FromEtag(hex), hex);
  EXPECT_EQ(Sha256FromEtag(std::string(64, 'A')), hex);
  EXPECT_EQ(Sha256FromEtag(Quoted(std::string(40, 'a'))), "");
  EXPECT_EQ(Sha256FromEtag(Quoted(std::string(63, 'a') + "g")), "");
}

}  // namespace
}  // namespace oscar::engine
