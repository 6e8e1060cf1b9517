#include "src/kv/pool/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/kv/pool/reservation.h"
#include "src/testing/seeds.h"

namespace oscar::pool {
namespace {

constexpr TierWindows kWindows = {64, 128};

std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}
std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixTreeTest : public ::testing::Test {
 protected:
  explicit PrefixTreeTest(TierWindows windows = kWindows, int bf16_pages = 200, int encoded_pages = 200)
      : bf16_("BF16", bf16_pages), encoded_("encoded", encoded_pages), windows_(windows), tree_(windows) {}

  // A sequence of `length` tokens, grown step by step as a prefill does.
  SequencePages Grown(int length) {
    SequencePages sequence(windows_);
    Grow(sequence, length);
    return sequence;
  }
  void Grow(SequencePages& sequence, int length) {
    while (sequence.length() < length) {
      const int step = std::min(100, length - sequence.length());
      auto reservation = Reservation::Make(sequence, bf16_, encoded_, step);
      ASSERT_TRUE(reservation.ok()) << reservation.status().message();
      reservation->Commit(step);
    }
  }
  void Keep(const std::vector<int32_t>& tokens, PrefixRetention retention = PrefixRetention::kNormal, std::string_view space = "") {
    SequencePages sequence = Grown(static_cast<int>(tokens.size()));
    tree_.Insert(space, tokens, sequence, retention);
  }
  // The pages are those that a sequence of that length has.
  static void ExpectWhole(const SequencePages& sequence) {
    const TierWindows windows = sequence.windows();
    for (int index = 0; index < PagesFor(sequence.length()); ++index) {
      const bool encoded = IsEncoded(index * kPageTokens, sequence.length(), windows.sink, windows.recent, windows.unit_tokens);
      EXPECT_EQ(static_cast<bool>(sequence.encoded().page(index)), encoded) << index;
      EXPECT_EQ(static_cast<bool>(sequence.bf16().page(index)), !encoded) << index;
    }
  }
  int Resumable(const std::vector<int32_t>& tokens, std::string_view space = "") {
    const int length = tree_.Match(space, tokens).resumable;
    const SequencePages sequence = tree_.Resume(space, tokens);
    EXPECT_EQ(sequence.length(), length);
    ExpectWhole(sequence);
    return length;
  }

  PagePool bf16_, encoded_;
  TierWindows windows_;
  PrefixTree tree_;
};

TEST_F(PrefixTreeTest, AnEmptyTreeMatchesNothing) {
  EXPECT_EQ(Resumable(Tokens(500)), 0);
  EXPECT_EQ(tree_.Match("", Tokens(500)).matched, 0);
}

TEST_F(PrefixTreeTest, ASequenceGoesOnWhereItEndedOrAnywhereInItsLastPage) {
  Keep(Tokens(1000));
  EXPECT_EQ(Resumable(Tokens(2000)), 1000);
  EXPECT_EQ(Resumable(Tokens(1000)), 1000);
  EXPECT_EQ(Resumable(Tokens(999)), 999);
  EXPECT_EQ(Resumable(Tokens(960)), 960);
  EXPECT_EQ(Resumable(Join(Tokens(970), Tokens(5, 9000))), 970);
  // Before its last page the window is gone: only the sink stays.
  EXPECT_EQ(Resumable(Tokens(959)), 64);
  EXPECT_EQ(tree_.Match("", Tokens(959)).matched, 959);
  EXPECT_EQ(Resumable(Tokens(63)), 63);
}

TEST_F(PrefixTreeTest, AShortSequenceServesEveryPrefixOfIt) {
  Keep(Tokens(64 + 128 + 63));  // nothing of it is encoded
  for (const int length : {254, 200, 129, 128, 127, 65, 64}) {
    EXPECT_EQ(Resumable(Tokens(length)), length);
    EXPECT_EQ(Resumable(Join(Tokens(length), Tokens(300, 7000))), length);
  }
  EXPECT_EQ(Resumable(Tokens(255)), 255);
}

TEST_F(PrefixTreeTest, SpacesDoNotMeet) {
  Keep(Tokens(300), PrefixRetention::kNormal, "a");
  EXPECT_EQ(Resumable(Tokens(300), "b"), 0);
  EXPECT_EQ(Resumable(Tokens(300), "a"), 300);
}

TEST_F(PrefixTreeTest, ABranchSharesThePagesBeforeItAndHoldsThemOnce) {
  const std::vector<int32_t> document = Tokens(640);
  SequencePages first = Grown(900);
  tree_.Insert("", Join(document, Tokens(260, 10000)), first, PrefixRetention::kNormal);
  // The second visitor found no window at 640 and computed all again: its own pages of the document give way to those held.
  SequencePages second = Grown(640);
  tree_.Insert("", document, second, PrefixRetention::kNormal);
  for (int index = 1; index < 8; ++index) EXPECT_EQ(second.encoded().page(index).id(), first.encoded().page(index).id()) << index;
  EXPECT_EQ(second.bf16().page(0).id(), first.bf16().page(0).id());
  ExpectWhole(second);
  // The third hits.
  EXPECT_EQ(Resumable(Join(document, Tokens(300, 20000))), 640);
}

TEST_F(PrefixTreeTest, AResumePointThatGoesFurtherReplacesTheShorterOneOfItsPage) {
  Keep(Tokens(1000));
  Keep(Tokens(1010));
  EXPECT_EQ(tree_.Stats().resume_points, 1);
  Keep(Tokens(1005));
  EXPECT_EQ(tree_.Stats().resume_points, 1);
  Keep(Join(Tokens(1000), Tokens(10, 5000)));
  EXPECT_EQ(tree_.Stats().resume_points, 2);
  EXPECT_EQ(Resumable(Tokens(2000)), 1010);
}

TEST_F(PrefixTreeTest, BF16PagesComeFromSparePointsFirstAndThenFromTheLeastRecentlyUsed) {
  Keep(Tokens(1000));
  Keep(Tokens(1000, 2000), PrefixRetention::kSpare);
  Keep(Tokens(1000, 4000));
  EXPECT_EQ(Resumable(Tokens(1000)), 1000);  // now more recent than the third
  EXPECT_GT(tree_.EvictBf16(1), 0);
  EXPECT_EQ(Resumable(Tokens(1000, 2000)), 64);
  EXPECT_GT(tree_.EvictBf16(1), 0);
  EXPECT_EQ(Resumable(Tokens(1000, 4000)), 64);
  EXPECT_EQ(Resumable(Tokens(1000)), 1000);
  EXPECT_EQ(tree_.Stats().evicted_tokens, 0u);  // what is encoded stays
}

TEST_F(PrefixTreeTest, EncodedPagesThatNothingMakesReusableGoFirst) {
  Keep(Tokens(1000));
  Keep(Tokens(1000, 2000));
  while (tree_.Match("", Tokens(1000)).resumable > 64) tree_.EvictBf16(1);
  const int before = encoded_.num_free();
  EXPECT_EQ(tree_.EvictEncoded(5), 5);
  EXPECT_EQ(encoded_.num_free(), before + 5);
  EXPECT_EQ(Resumable(Tokens(1000, 2000)), 1000);
  EXPECT_LT(tree_.Match("", Tokens(1000)).matched, 1000);
}

TEST_F(PrefixTreeTest, PagesOfLivingSequencesStay) {
  SequencePages living = Grown(1000);
  tree_.Insert("", Tokens(1000), living, PrefixRetention::kNormal);
  EXPECT_EQ(tree_.EvictBf16(1), 0);
  EXPECT_EQ(tree_.EvictEncoded(1), 0);
  EXPECT_EQ(tree_.Match("", Tokens(1000)).live_encoded_pages, 12);
  EXPECT_TRUE(tree_.DropLeastUsed());
  EXPECT_FALSE(tree_.DropLeastUsed());
  ExpectWhole(living);
}

TEST_F(PrefixTreeTest, ClearFreesAllThatNobodyHolds) {
  SequencePages living = Grown(500);
  tree_.Insert("", Tokens(500), living, PrefixRetention::kNormal);
  Keep(Tokens(900, 50000));
  tree_.Clear();
  EXPECT_EQ(encoded_.num_used() + bf16_.num_used(), PagesFor(500));
  EXPECT_EQ(Resumable(Tokens(500)), 0);
}

TEST_F(PrefixTreeTest, PointsComeBackAsTheyWereTheMostRecentlyUsedFirst) {
  Keep(Tokens(300), PrefixRetention::kSpare, "x");
  Keep(Tokens(777, 1000));
  const auto points = tree_.Points();
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].tokens, Tokens(777, 1000));
  EXPECT_EQ(points[1].tokens, Tokens(300));
  EXPECT_EQ(points[1].space, "x");
  EXPECT_EQ(points[1].retention, PrefixRetention::kSpare);
  for (const auto& point : points) ExpectWhole(point.pages);
}

class EverythingRecentTest : public PrefixTreeTest {
 protected:
  EverythingRecentTest() : PrefixTreeTest({64, kEverythingRecent}) {}
};

TEST_F(EverythingRecentTest, WithoutEncodedPagesEveryPrefixCanBeResumed) {
  Keep(Tokens(1000));
  for (const int length : {999, 960, 500, 65}) EXPECT_EQ(Resumable(Join(Tokens(length), Tokens(100, 7000))), length);
  EXPECT_EQ(tree_.EvictBf16(1000), PagesFor(1000));
}

// Against a list of what was kept: nothing that was not kept matches, what is resumable is as long as the best of all kept
// sequences allows, and the pools balance.
void Walk(TierWindows windows, uint64_t seed, int operations) {
  std::mt19937_64 rng(seed);
  const auto draw = [&](int limit) { return static_cast<int>(rng() % static_cast<uint64_t>(limit)); };
  PagePool bf16("BF16", 4000), encoded("encoded", 4000);
  PrefixTree tree(windows);
  std::vector<std::vector<int32_t>> kept;
  // Few stems and few forks, so that much is shared.
  const auto conversation = [&] {
    std::vector<int32_t> tokens;
    const int turns = 1 + draw(4);
    for (int turn = 0; turn < turns; ++turn) {
      const int32_t first = 1000 * draw(3) + 10000 * turn;
      tokens = Join(tokens, Tokens(1 + draw(2) * 63 + draw(160), first));
    }
    return tokens;
  };
  for (int i = 0; i < operations; ++i) {
    const std::vector<int32_t> tokens = conversation();
    const int length = static_cast<int>(tokens.size());
    int best = 0, matched = 0;
    for (const auto& one : kept) {
      const int shared = static_cast<int>(std::mismatch(tokens.begin(), tokens.end(), one.begin(), one.end()).first - tokens.begin());
      const bool same_window = EncodedEnd(shared, windows) == EncodedEnd(static_cast<int>(one.size()), windows);
      best = std::max(best, same_window ? shared : std::min(shared, windows.sink));
      matched = std::max(matched, shared);
    }
    const PrefixMatch match = tree.Match("", tokens);
    ASSERT_EQ(match.resumable, best) << "operation " << i << " seed " << seed;
    ASSERT_EQ(match.matched, matched) << "operation " << i << " seed " << seed;
    SequencePages sequence = tree.Resume("", tokens);
    ASSERT_EQ(sequence.length(), best);
    while (sequence.length() < length) {
      const int step = std::min(1 + draw(200), length - sequence.length());
      auto reservation = Reservation::Make(sequence, bf16, encoded, step);
      ASSERT_TRUE(reservation.ok()) << reservation.status().message();
      reservation->Commit(step);
    }
    if (draw(3) > 0 && length >= kPageTokens) {
      tree.Insert("", tokens, sequence, PrefixRetention::kNormal);
      kept.push_back(tokens);
    }
  }
  std::vector<int32_t> held[2];
  tree.AppendHandles(held[0], held[1]);
  EXPECT_EQ(std::set<int32_t>(held[0].begin(), held[0].end()).size(), static_cast<std::size_t>(bf16.num_used()));
  EXPECT_EQ(held[1].size(), static_cast<std::size_t>(encoded.num_used()));
  tree.EvictEncoded(4000);
  tree.EvictBf16(4000);
  EXPECT_EQ(bf16.num_used() + encoded.num_used(), 0);
}

TEST(PrefixTreeWalk, EqualsTheListOfWhatWasKept) {
  const uint64_t seed = testing::TestSeed(20261130);
  for (const TierWindows windows : {TierWindows{64, 128}, TierWindows{64, 256}, TierWindows{128, 64}, TierWindows{0, 64}, TierWindows{64, 128, 128},
                                    TierWindows{64, kEverythingRecent}}) {
    for (uint64_t walk = 0; walk < 6; ++walk) Walk(windows, seed + walk, 120);
  }
}

// What an observer knows: every reusable page by all tokens up to its end.
class KnownPages final : public PrefixObserver {
 public:
  using Pages = std::set<std::pair<std::string, std::vector<int32_t>>>;
  void Stored(std::string_view space, std::span<const int32_t> tokens, int first_page) override {
    EXPECT_TRUE(first_page == 0 || pages.contains({std::string(space), Begin(tokens, first_page)})) << "a page before the one it follows";
    for (int page = first_page + 1; page * kPageTokens <= static_cast<int>(tokens.size()); ++page) {
      EXPECT_TRUE(pages.insert({std::string(space), Begin(tokens, page)}).second) << "stored twice";
    }
  }
  void Removed(std::string_view space, std::span<const int32_t> tokens, int first_page) override {
    for (int page = first_page + 1; page * kPageTokens <= static_cast<int>(tokens.size()); ++page) {
      EXPECT_EQ(pages.erase({std::string(space), Begin(tokens, page)}), 1u) << "removed and not there";
    }
  }
  void Cleared() override { pages.clear(); }

  static std::vector<int32_t> Begin(std::span<const int32_t> tokens, int num_pages) {
    return {tokens.begin(), tokens.begin() + num_pages * kPageTokens};
  }
  static Pages Of(const PrefixTree& tree) {
    Pages pages;
    for (const PrefixTree::Point& point : tree.Points()) {
      for (int page = 1; page * kPageTokens <= static_cast<int>(point.tokens.size()); ++page) pages.insert({point.space, Begin(point.tokens, page)});
    }
    return pages;
  }

  Pages pages;
};

TEST(PrefixTreeObserver, KnowsThePagesOfAllResumePointsWhateverHappens) {
  std::mt19937_64 rng(testing::TestSeed(71));
  PagePool bf16("BF16", 2000), encoded("encoded", 2000);
  KnownPages known;
  PrefixTree tree(kWindows);
  tree.Observe(&known);
  std::size_t most = 0;
  for (int i = 0; i < 600; ++i) {
    const uint64_t what = rng() % 20;
    if (what == 0) {
      tree.EvictEncoded(1 + static_cast<int>(rng() % 6));
    } else if (what == 1) {
      tree.EvictBf16(1 + static_cast<int>(rng() % 6));
    } else if (what == 2) {
      tree.DropLeastUsed();
    } else if (what == 3 && rng() % 10 == 0) {
      tree.Clear();
    } else {
      const std::string space = rng() % 3 == 0 ? "other" : "";
      std::vector<int32_t> tokens = Tokens(1 + static_cast<int>(rng() % 400), 1000 * static_cast<int32_t>(rng() % 2));
      if (rng() % 2 == 0) tokens = Join(tokens, Tokens(1 + static_cast<int>(rng() % 300), 5000 + 1000 * static_cast<int32_t>(rng() % 3)));
      SequencePages sequence(kWindows);
      auto reservation = Reservation::Make(sequence, bf16, encoded, static_cast<int>(tokens.size()));
      ASSERT_TRUE(reservation.ok()) << reservation.status().message();
      reservation->Commit(static_cast<int>(tokens.size()));
      tree.Insert(space, tokens, sequence, rng() % 2 == 0 ? PrefixRetention::kSpare : PrefixRetention::kNormal);
    }
    ASSERT_EQ(known.pages, KnownPages::Of(tree)) << "operation " << i;
    most = std::max(most, known.pages.size());
  }
  EXPECT_GT(most, 20u);
  KnownPages late;
  tree.Observe(&late);
  EXPECT_EQ(late.pages, known.pages);
  tree.Observe(nullptr);
  tree.Clear();
  EXPECT_FALSE(late.pages.empty());
}

}  // namespace
}  // namespace oscar::pool
