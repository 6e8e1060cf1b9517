#include "src/kv/pool/reservation.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "src/kv/pool/invariants.h"

namespace oscar::pool {
namespace {

// One or two sequences over two pools, with the snapshot that ValidateInvariants reads.
struct Fixture {
  explicit Fixture(int bf16_pages = 32, int encoded_pages = 32, TierWindows tier_windows = {64, 128})
      : windows(tier_windows), bf16("BF16", bf16_pages), encoded("encoded", encoded_pages), sequence(windows) {}

  Result<Reservation> Reserve(int num_tokens) { return Reservation::Make(sequence, bf16, encoded, num_tokens); }
  void Extend(int num_tokens) {
    Result<Reservation> step = Reserve(num_tokens);
    ASSERT_TRUE(step.ok()) << step.status().message();
    step->Commit(num_tokens);
  }
  SequenceSnapshot Describe(const SequencePages& pages, int id, const Reservation* step = nullptr) const {
    SequenceSnapshot snapshot;
    snapshot.id = id;
    snapshot.length = pages.length();
    snapshot.bf16_table.assign(pages.bf16().entries().begin(), pages.bf16().entries().end());
    snapshot.encoded_table.assign(pages.encoded().entries().begin(), pages.encoded().entries().end());
    if (step != nullptr) {
      snapshot.step_tokens = step->num_tokens();
      snapshot.replaced_page = TableEntry(step->replaced_page());
    }
    return snapshot;
  }
  void ExpectValid(std::vector<SequenceSnapshot> sequences) const {
    const Status status = ValidateInvariants({windows, bf16.Snapshot(), encoded.Snapshot(), std::move(sequences)});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  void ExpectValid(const Reservation* step = nullptr) const { ExpectValid({Describe(sequence, 0, step)}); }

  TierWindows windows;
  PagePool bf16, encoded;
  SequencePages sequence;
};

TEST(Reservation, HoldsTheExactStateAtEveryLengthAndChunk) {
  for (const TierWindows windows : {TierWindows{64, 128}, TierWindows{64, 128, 128}, TierWindows{0, 64, 128}}) {
    for (const int chunk : {1, 7, 64, 100, 512}) {
      Fixture fixture(32, 32, windows);
      while (fixture.sequence.length() < 900) {
        Result<Reservation> step = fixture.Reserve(chunk);
        ASSERT_TRUE(step.ok());
        fixture.ExpectValid(&*step);
        step->Commit(chunk);
        fixture.ExpectValid();
      }
    }
  }
}

TEST(Reservation, UndoesItselfUnlessCommitted) {
  Fixture fixture;
  fixture.Extend(300);
  const SequenceSnapshot before = fixture.Describe(fixture.sequence, 0);
  const int bf16_used = fixture.bf16.num_used(), encoded_used = fixture.encoded.num_used();
  {
    Result<Reservation> step = fixture.Reserve(200);
    ASSERT_TRUE(step.ok());
    EXPECT_GT(fixture.encoded.num_used(), encoded_used);
  }
  const SequenceSnapshot after = fixture.Describe(fixture.sequence, 0);
  EXPECT_EQ(after.length, 300);
  EXPECT_EQ(after.bf16_table, before.bf16_table);
  EXPECT_EQ(after.encoded_table, before.encoded_table);
  EXPECT_EQ(fixture.bf16.num_used(), bf16_used);
  EXPECT_EQ(fixture.encoded.num_used(), encoded_used);
}

TEST(Reservation, CommittingAPartOfADraftLeavesTheStateOfDirectDecoding) {
  for (int kept = 0; kept <= 70; ++kept) {
    Fixture drafted, direct;
    drafted.Extend(250);
    direct.Extend(250);
    Result<Reservation> step = drafted.Reserve(70);
    ASSERT_TRUE(step.ok());
    step->Commit(kept);
    for (int i = 0; i < kept; ++i) direct.Extend(1);
    EXPECT_EQ(drafted.sequence.length(), 250 + kept);
    drafted.ExpectValid();
    EXPECT_EQ(drafted.bf16.num_used(), direct.bf16.num_used()) << kept;
    EXPECT_EQ(drafted.encoded.num_used(), direct.encoded.num_used()) << kept;
  }
}

TEST(Reservation, AFullPoolOfEitherKindRefusesAndChangesNothing) {
  struct Case {
    int bf16_pages, encoded_pages;
    const char* message;
  };
  for (const Case& limits : {Case{5, 32, "out of BF16 pages: 4 needed, 0 of 5 free"},
                             Case{32, 1, "out of encoded pages: 4 needed, 0 of 1 free"}}) {
    Fixture fixture(limits.bf16_pages, limits.encoded_pages);
    fixture.Extend(4 * 64);  // four BF16 pages, one of them demoted next
    fixture.Extend(64 - 1);
    const int bf16_used = fixture.bf16.num_used();
    const Status status = fixture.Reserve(4 * 64 + 1).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("out of "), std::string::npos);
    EXPECT_EQ(fixture.sequence.length(), 319);
    EXPECT_EQ(fixture.bf16.num_used(), bf16_used);
    fixture.ExpectValid();
  }
}

TEST(Reservation, RefusesToGrowBeyondTheLongestSequence) {
  Fixture fixture;
  fixture.Extend(10);
  EXPECT_EQ(fixture.Reserve(kMaxSequenceTokens - 9).status().code(), StatusCode::kInvalidArgument);
  fixture.ExpectValid();
}

TEST(Reservation, AWriterGetsAPageOfItsOwnInPlaceOfASharedOne) {
  Fixture fixture;
  fixture.Extend(128);
  SequencePages child = fixture.sequence.Fork(PageRef());
  child.Truncate(100);  // its last page is shared and partial now
  fixture.ExpectValid({fixture.Describe(fixture.sequence, 0), fixture.Describe(child, 1)});
  const PageId shared = child.SlotFor(99).page;
  {
    Result<Reservation> step = Reservation::Make(child, fixture.bf16, fixture.encoded, 3);
    ASSERT_TRUE(step.ok());
    ASSERT_TRUE(step->copy().has_value());
    EXPECT_EQ(step->copy()->from, shared);
    EXPECT_EQ(step->copy()->to, child.SlotFor(100).page);
    EXPECT_NE(step->copy()->to, shared);
    fixture.ExpectValid({fixture.Describe(fixture.sequence, 0), fixture.Describe(child, 1, &*step)});
  }
  EXPECT_EQ(child.SlotFor(99).page, shared);  // undone: the shared page is back
  Result<Reservation> step = Reservation::Make(child, fixture.bf16, fixture.encoded, 3);
  ASSERT_TRUE(step.ok());
  step->Commit(3);
  EXPECT_NE(child.SlotFor(99).page, shared);
  fixture.ExpectValid({fixture.Describe(fixture.sequence, 0), fixture.Describe(child, 1)});
}

TEST(Reservation, ASoleOwnerWritesItsPartialPageInPlace) {
  Fixture fixture;
  fixture.Extend(100);
  const PageId page = fixture.sequence.SlotFor(99).page;
  Result<Reservation> step = fixture.Reserve(1);
  ASSERT_TRUE(step.ok());
  EXPECT_FALSE(step->copy().has_value());
  EXPECT_EQ(fixture.sequence.SlotFor(100).page, page);
  EXPECT_EQ(fixture.sequence.SlotFor(100).row, 36);
}

TEST(SequencePages, ResumesAtTheLengthItselfWhileTheWindowIsHeldElseAtTheSink) {
  const TierWindows windows = {64, 128};
  for (const int length : {1, 63, 64, 65, 191, 255, 256, 257, 319, 320, 321, 700}) {
    for (int target = 0; target <= length; ++target) {
      Fixture fixture(32, 32, windows);
      fixture.Extend(length);
      // By definition: all BF16 rows of [max(sink, B(target)), target) are held.
      bool held = true;
      for (int token = 0; token < target; ++token) {
        if (!IsEncoded(token, target, windows.sink, windows.recent)) {
          held = held && fixture.sequence.SlotFor(token).page != PageId::kNone;
        }
      }
      const int resumable = fixture.sequence.ResumableLength(target);
      ASSERT_EQ(resumable, held ? target : std::min(target, 64)) << length << " to " << target;
      fixture.sequence.Truncate(resumable);
      fixture.ExpectValid();
      fixture.Extend(200);  // and it can go on
      fixture.ExpectValid();
    }
  }
}

TEST(SequencePages, AForkSharesFullPagesAndHasItsOwnPartialPage) {
  Fixture fixture;
  fixture.Extend(500);
  const int bf16_used = fixture.bf16.num_used(), encoded_used = fixture.encoded.num_used();
  Result<PageRef> copy = fixture.bf16.Take();
  ASSERT_TRUE(copy.ok());
  SequencePages child = fixture.sequence.Fork(std::move(copy).value());
  EXPECT_EQ(child.length(), 500);
  EXPECT_EQ(fixture.bf16.num_used(), bf16_used + 1);
  EXPECT_EQ(fixture.encoded.num_used(), encoded_used);
  EXPECT_NE(child.SlotFor(499).page, fixture.sequence.SlotFor(499).page);
  EXPECT_EQ(child.SlotFor(447).page, fixture.sequence.SlotFor(447).page);
  fixture.ExpectValid({fixture.Describe(fixture.sequence, 0), fixture.Describe(child, 1)});
}

}  // namespace
}  // namespace oscar::pool
