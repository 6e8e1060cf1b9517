#include "src/kv/pool/demotion_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace oscar::pool {
namespace {

// method.md 5.1 written out: the page of token j is encoded for the query at p when every position in it is below p - W. Codecs
// that encode 128 tokens together: the same of units, counted from the sink (baselines.md 2).
bool IsEncodedByDefinition(int token, int position, TierWindows windows) {
  if (token < windows.sink) return false;
  const int unit = windows.unit_tokens;
  const int last_of_unit = windows.sink + (token - windows.sink) / unit * unit + unit - 1;
  return last_of_unit < position - windows.recent;
}

const TierWindows kWindows[] = {{64, 256}, {0, 0}, {0, 64}, {64, 0}, {128, 128}, {256, 64}, {0, 0, 128}, {64, 64, 128}, {64, 256, 128}};

TEST(TierRule, AgreesWithItsDefinitionForEveryTokenAndPosition) {
  for (const TierWindows windows : kWindows) {
    for (int position = 0; position < 900; ++position) {
      for (int token = 0; token <= position; ++token) {
        ASSERT_EQ(IsEncoded(token, position, windows.sink, windows.recent, windows.unit_tokens),
                  IsEncodedByDefinition(token, position, windows))
            << "token " << token << " position " << position << " sink " << windows.sink << " recent "
            << windows.recent;
      }
    }
  }
}

TEST(TierRule, AQuerySeesBetweenRecentPlus1AndRecentPlus64TrailingTokensInBf16) {
  for (int position = 256; position < 2000; ++position) {
    const int trailing = position + 1 - FirstRecentPosition(position, 256);  // itself included
    EXPECT_GE(trailing, 257);
    EXPECT_LE(trailing, 320);
  }
}

TEST(TierRule, SegmentsCountTheTokensOfEachTier) {
  for (const TierWindows windows : kWindows) {
    for (int length = 0; length < 900; ++length) {
      SegmentTokens expected;
      for (int token = 0; token < length; ++token) {
        if (token < windows.sink) {
          ++expected.sink;
        } else if (IsEncodedByDefinition(token, length, windows)) {
          ++expected.body;
        } else {
          ++expected.recent;
        }
      }
      const SegmentTokens actual = SegmentsAt(length, windows);
      ASSERT_EQ(actual.sink, expected.sink) << length;
      ASSERT_EQ(actual.body, expected.body) << length;
      ASSERT_EQ(actual.recent, expected.recent) << length;
    }
  }
}

TEST(TierRule, TheFirstEncodedPageOfTheDefaultsAppearsAtLength384) {
  // The query at position 384 = sink + recent + 64 is the first that sees [64, 128) encoded.
  EXPECT_EQ(SegmentsAt(383, {64, 256}).body, 0);
  EXPECT_EQ(SegmentsAt(384, {64, 256}).body, 64);
  EXPECT_EQ(SegmentsAt(447, {64, 256}).body, 64);
  EXPECT_EQ(SegmentsAt(448, {64, 256}).body, 128);
}

TEST(TierRule, NothingIsEncodedWhenEverythingIsRecent) {
  EXPECT_EQ(SegmentsAt(kMaxSequenceTokens, {64, kEverythingRecent}).body, 0);
  EXPECT_EQ(kEverythingRecent % kPageTokens, 0);
}

TEST(PlanDemotion, ChunksOfAnySizePlanTheSamePagesInTheSameOrder) {
  for (const TierWindows windows : kWindows) {
    std::vector<int> at_once;
    const PageRange all = PlanDemotion(0, 1500, windows);
    for (int page = all.first; page < all.end; ++page) at_once.push_back(page);
    for (const int step : {1, 7, 63, 64, 65, 100, 512, 1499}) {
      std::vector<int> in_steps;
      for (int length = 0; length < 1500; length += step) {
        const PageRange range = PlanDemotion(length, std::min(length + step, 1500), windows);
        for (int page = range.first; page < range.end; ++page) in_steps.push_back(page);
      }
      EXPECT_EQ(in_steps, at_once) << "step " << step << " sink " << windows.sink << " recent " << windows.recent;
    }
  }
}

TEST(PlanDemotion, DecodePlansAtMostOnePageAndOnlyWhenTheBoundaryMoves) {
  for (int length = 0; length < 2000; ++length) {
    const PageRange range = PlanDemotion(length, length + 1, {64, 256});
    EXPECT_EQ(range.size(), length + 1 >= 384 && (length + 1) % 64 == 0 ? 1 : 0) << length;
  }
}

TEST(PlanDemotion, UnitsOfTwoPagesAreEncodedTogether) {
  for (int length = 0; length < 1000; ++length) {
    const PageRange range = PlanDemotion(length, length + 1, {64, 256, 128});
    EXPECT_EQ(range.size(), length + 1 >= 448 && (length + 1 - 320) % 128 == 0 ? 2 : 0) << length;
    if (range.size() > 0) {
      EXPECT_EQ(range.first % 2, 1);  // behind a sink of one page
    }
  }
}

TEST(PlanDemotion, PlansOnlyPagesThatAreCompleteAtTheEndOfTheStep) {
  for (const TierWindows windows : kWindows) {
    for (int length = 0; length < 700; ++length) {
      const PageRange range = PlanDemotion(length, length + 17, windows);
      if (range.size() > 0) {
        EXPECT_LE(range.end * kPageTokens, length + 17);
        EXPECT_GE(range.first * kPageTokens, windows.sink);
      }
    }
  }
}

}  // namespace
}  // namespace oscar::pool
