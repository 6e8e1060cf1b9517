#include "src/engine/sample/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

TEST(StopMatcher, HoldsBackWhatMayBecomeAStopString) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("some E"), "some ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("ough"), "ENough");
  EXPECT_EQ(matcher.Push(" EN"), " ");
  EXPECT_EQ(matcher.Push("D more"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Push("even more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, GivesWhatWasHeldBackAtTheEnd) {
  StopMatcher matcher({"</answer>"});
  EXPECT_EQ(matcher.Push("x </ans"), "x ");
  EXPECT_EQ(matcher.Finish(), "</ans");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, AnEmptyStopStringStopsNothing) {
  StopMatcher matcher({""});
  EXPECT_EQ(matcher.Push("text"), "text");
}

// Over a two-letter alphabet, where partial matches overlap a lot, against a search in the whole text.
TEST(StopMatcher, AgreesWithASearchInTheWholeTextForAnyPieces) {
  const uint64_t seed = testing::TestSeed(11);
  SCOPED_TRACE(seed);
  std::mt19937_64 rng(seed);
  const auto word = [&](size_t longest) {
    std::string text(1 + rng() % longest, 'a');
    for (char& letter : text) letter = rng() % 2 ? 'a' : 'b';
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string text = word(40);
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + rng() % 3; ++i) stops.push_back(word(6));
    size_t first = std::string::npos;
    for (size_t end = 1; end <= text.size() && first == std::string::npos; ++end) {
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop)) first = std::min(first, end - stop.size());
      }
    }
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + rng() % 5;
      shown += matcher.Push(std::string_view(text).substr(at, size));
      at += size;
    }
    shown += matcher.Finish();
    ASSERT_EQ(matcher.stopped(), first != std::string::npos) << text;
    ASSERT_EQ(shown, text.substr(0, first)) << text;
  }
}

TEST(StopMatcher, NamesTheStopStringAndKeepsItWhenAskedTo) {
  const auto shown = [](StopMatcher& matcher, std::initializer_list<const char*> pieces) {
    std::string text;
    for (const char* piece : pieces) text += matcher.Push(piece);
    return text + matcher.Finish();
  };
  StopMatcher without({"END", "xx"}), with({"END", "xx"}, /*include=*/true), none({"END"});
  EXPECT_EQ(shown(without, {"abEN", "Dcd"}), "ab");
  EXPECT_EQ(without.matched(), "END");
  EXPECT_EQ(shown(with, {"abEN", "Dcd"}), "abEND");
  EXPECT_EQ(with.matched(), "END");
  EXPECT_EQ(shown(none, {"EN"}), "EN");
  EXPECT_EQ(none.matched(), "");
}

}  // namespace
}  // namespace oscar::engine
