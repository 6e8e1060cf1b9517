#include "src/kv/pool/invariants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/kv/pool/reservation.h"
#include "src/testing/seeds.h"

namespace oscar::pool {
namespace {

// A consistent snapshot by hand: sink 64, recent 64; a sequence of 200 tokens has B = 128: BF16 pages 0, 2, 3 and
// encoded page 1; a step of 60 tokens adds BF16 page 4 and encodes page 2.
CacheSnapshot Consistent() {
  CacheSnapshot snapshot;
  snapshot.windows = {64, 64};
  snapshot.bf16 = {{5}, {1, 1, 1, 1, 1, 0}};
  snapshot.encoded = {{0}, {0, 1, 1}};
  SequenceSnapshot sequence;
  sequence.id = 7;
  sequence.length = 200;
  sequence.step_tokens = 60;
  sequence.bf16_table = {0, kNoPage, 2, 3, 4};
  sequence.encoded_table = {kNoPage, 1, 2, kNoPage, kNoPage};
  sequence.replaced_page = 1;
  snapshot.sequences = {sequence};
  return snapshot;
}

TEST(ValidateInvariants, AcceptsAConsistentSnapshot) {
  const Status status = ValidateInvariants(Consistent());
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ValidateInvariants, NamesTheRuleThatIsBroken) {
  struct Case {
    const char* message;
    void (*spoil)(CacheSnapshot&);
  };
  const Case cases[] = {
      {"P1: BF16 page 5 is free twice", [](CacheSnapshot& s) { s.bf16.free.push_back(5); }},
      {"P1: the free list names BF16 page 9", [](CacheSnapshot& s) { s.bf16.free.push_back(9); }},
      {"P1: BF16 page 5 has 0 owners and is not free", [](CacheSnapshot& s) { s.bf16.free.clear(); }},
      {"P1: encoded page 1 has 1 owners and is free", [](CacheSnapshot& s) { s.encoded.free.push_back(1); }},
      {"P2: BF16 page 3 has 2 owners and is named 1", [](CacheSnapshot& s) { s.bf16.owners[3] = 2; }},
      {"P2: BF16 page 2 has 1 owners and is named 2", [](CacheSnapshot& s) { s.sequences[0].bf16_table[3] = 2; }},
      {"P2: a table names encoded page 8", [](CacheSnapshot& s) { s.sequences[0].encoded_table[1] = 8; }},
      {"P2: BF16 page 1 has 1 owners and is named 0", [](CacheSnapshot& s) { s.sequences[0].replaced_page = kNoPage; }},
      {"has tables of 4 and 5 entries",
       [](CacheSnapshot& s) {
         s.sequences[0].bf16_table.pop_back();
         s.bf16 = {{5, 4}, {1, 1, 1, 1, 0, 0}};
       }},
      {"page index 1 keeps a BF16 page",
       [](CacheSnapshot& s) { std::swap(s.sequences[0].bf16_table[1], s.sequences[0].replaced_page); }},
      {"page index 2 lacks an encoded page",
       [](CacheSnapshot& s) { std::swap(s.sequences[0].encoded_table[2], s.sequences[0].encoded_table[3]); }},
      {"S2: sequence 7 of 200 + 60 tokens, page index 3 is written",
       [](CacheSnapshot& s) {
         s.sequences[0].replaced_page = 3;
         s.bf16 = {{1, 5}, {1, 0, 1, 2, 1, 0}};
       }},
      {"page index 2 is encoded by a step while",
       [](CacheSnapshot& s) {
         s.encoded.owners[2] = 2;
         SequenceSnapshot other;
         other.length = 256;  // sink 64, body [64, 192), so pages 1 and 2 encoded
         other.bf16_table = {kNoPage, kNoPage, kNoPage, kNoPage};
         other.encoded_table = {kNoPage, kNoPage, 2, kNoPage};
         s.sequences.push_back(other);
       }},
  };
  for (const Case& broken : cases) {
    CacheSnapshot snapshot = Consistent();
    broken.spoil(snapshot);
    const Status status = ValidateInvariants(snapshot);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << broken.message;
    EXPECT_NE(status.message().find(broken.message), std::string::npos) << status.message();
  }
}

// Sequences as a cache would hold them, driven by random operations (method.md 11, test 19).
class RandomOperations {
 public:
  RandomOperations(uint64_t seed, TierWindows windows, int bf16_pages, int encoded_pages)
      : rng_(seed), windows_(windows), bf16_("BF16", bf16_pages), encoded_("encoded", encoded_pages) {}

  void Step() {
    const int operation = Draw(20);
    if (live_.empty() || operation == 0) return Create();
    Live& sequence = *live_[static_cast<std::size_t>(Draw(static_cast<int>(live_.size())))];
    if (operation == 1) return Release(sequence);
    if (sequence.step) return Finish(sequence, operation);
    if (operation == 2) return Fork(sequence);
    if (operation == 3) return Truncate(sequence);
    Reserve(sequence);
  }
  CacheSnapshot Snapshot() const {
    CacheSnapshot snapshot = {windows_, bf16_.Snapshot(), encoded_.Snapshot(), {}};
    for (const auto& sequence : live_) {
      SequenceSnapshot description;
      description.length = sequence->pages.length();
      const auto bf16 = sequence->pages.bf16().entries(), encoded = sequence->pages.encoded().entries();
      description.bf16_table.assign(bf16.begin(), bf16.end());
      description.encoded_table.assign(encoded.begin(), encoded.end());
      if (sequence->step) {
        description.step_tokens = sequence->step->num_tokens();
        description.replaced_page = TableEntry(sequence->step->replaced_page());
      }
      snapshot.sequences.push_back(std::move(description));
    }
    return snapshot;
  }
  int num_refused() const { return num_refused_; }
  int num_copies() const { return num_copies_; }

 private:
  struct Live {
    explicit Live(SequencePages&& sequence) : pages(std::move(sequence)) {}
    SequencePages pages;
    std::optional<Reservation> step;  // after `pages`, so that it is undone first
  };
  static constexpr std::size_t kMaxSequences = 6;

  int Draw(int limit) { return static_cast<int>(rng_() % static_cast<uint64_t>(limit)); }
  void Create() {
    if (live_.size() < kMaxSequences) live_.push_back(std::make_unique<Live>(SequencePages(windows_)));
  }
  void Release(const Live& sequence) {
    std::erase_if(live_, [&](const auto& other) { return other.get() == &sequence; });
  }
  void Finish(Live& sequence, int operation) {
    const int tokens = sequence.step->num_tokens();
    sequence.step->Commit(operation < 4 ? Draw(tokens + 1) : tokens);
    sequence.step.reset();
  }
  void Fork(Live& sequence) {
    if (live_.size() == kMaxSequences) return;
    PageRef last_page;
    if (sequence.pages.length() % kPageTokens != 0) {
      Result<PageRef> page = bf16_.Take();
      if (!page.ok()) return;
      last_page = std::move(page).value();
    }
    live_.push_back(std::make_unique<Live>(sequence.pages.Fork(std::move(last_page))));
  }
  void Truncate(Live& sequence) {
    const int length = sequence.pages.length();
    const int cut = Draw(2) == 0 ? Draw(80) : Draw(length + 1);
    sequence.pages.Truncate(sequence.pages.ResumableLength(std::max(0, length - cut)));
  }
  void Reserve(Live& sequence) {
    constexpr int kSteps[] = {1, 1, 1, 7, 16, 64, 100, 300};
    Result<Reservation> step = Reservation::Make(sequence.pages, bf16_, encoded_, kSteps[Draw(8)]);
    if (!step.ok()) {
      ++num_refused_;
      return;
    }
    num_copies_ += step->copy().has_value() ? 1 : 0;
    sequence.step.emplace(std::move(step).value());
  }

  std::mt19937_64 rng_;
  TierWindows windows_;
  PagePool bf16_, encoded_;
  std::vector<std::unique_ptr<Live>> live_;
  int num_refused_ = 0, num_copies_ = 0;
};

TEST(ValidateInvariants, HoldsAfterEachOfAMillionRandomOperations) {
  const uint64_t seed = testing::TestSeed(19);
  int refused = 0, copies = 0;
  for (const TierWindows windows : {TierWindows{64, 128}, TierWindows{0, 0}, TierWindows{64, 0}, TierWindows{0, 64},
                                    TierWindows{64, kEverythingRecent}}) {
    RandomOperations operations(seed, windows, /*bf16_pages=*/30, windows.recent == kEverythingRecent ? 0 : 40);
    for (int i = 0; i < 200'000; ++i) {
      operations.Step();
      const Status status = ValidateInvariants(operations.Snapshot());
      ASSERT_TRUE(status.ok()) << status.message() << "; operation " << i << ", OSCAR_TEST_SEED=" << seed;
    }
    refused += operations.num_refused();
    copies += operations.num_copies();
  }
  // The walk reaches what it is for: full pools and shared partial pages.
  EXPECT_GT(refused, 1000);
  EXPECT_GT(copies, 500);
}

}  // namespace
}  // namespace oscar::pool
