#include "src/engine/text/string_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

TEST(StringIndex, FindsWhatAMapFinds) {
  std::mt19937_64 rng(testing::TestSeed(3));
  std::vector<std::string> texts;
  const auto text_of = [&texts](int32_t number) {
    return std::string_view(texts[static_cast<size_t>(number)]);
  };
  std::map<std::string, int32_t> judge;
  StringIndex index(5000);
  for (int32_t i = 0; i < 5000; ++i) {
    std::string text(rng() % 20, 'x');
    for (char& c : text) c = static_cast<char>("ab\0"[rng() % 3]);
    texts.push_back(text);
    const auto [it, inserted] = judge.emplace(text, i);
    ASSERT_EQ(index.Insert(text, i, text_of), inserted ? -1 : it->second);
  }
  for (const auto& [text, number] : judge) {
    EXPECT_EQ(index.Find(text, text_of), number);
    const auto longer = judge.find(text + "c");
    EXPECT_EQ(index.Find(text + "c", text_of), longer == judge.end() ? -1 : longer->second);
  }
}

TEST(StringIndex, AnEmptyIndexFindsNothing) {
  const StringIndex index(0);
  EXPECT_EQ(index.Find("a", [](int32_t) { return std::string_view(); }), -1);
}

}  // namespace
}  // namespace oscar::engine
