#include "src/kv/pool/ledger.h"

#include <gtest/gtest.h>

#include "oscar/kv_cache.h"

namespace oscar::pool {
namespace {

const CodecInfo kInt2 = {.name = "int2", .bits = 2, .encode_tokens = 64, .page_bytes = [](int d) {
                           return static_cast<std::size_t>(2 * 64 * (d / 4 + 4));
                         }};
const CodecInfo kBf16 = {.name = "bf16", .bits = 16};

TEST(Ledger, StoredBitsPerElementAreTwoPlus32OverD) {
  EXPECT_DOUBLE_EQ(SteadyBits(kInt2, 64), 2.5);
  EXPECT_DOUBLE_EQ(SteadyBits(kInt2, 128), 2.25);
  EXPECT_DOUBLE_EQ(SteadyBits(kInt2, 256), 2.125);
  EXPECT_DOUBLE_EQ(SteadyBits(kBf16, 128), 16);
}

// The table of method.md 4: S = 64, W = 256, d = 128, by page phase r: n_bf16 = S + W + r.
TEST(Ledger, ReproducesTheTableOfBitsByContext) {
  struct Row {
    int tokens;
    double best, mean, worst, ratio;
  };
  for (const Row& row : {Row{2048, 4.398, 4.610, 4.821, 3.47}, Row{4096, 3.324, 3.430, 3.536, 4.66},
                         Row{32768, 2.384, 2.397, 2.411, 6.68}, Row{131072, 2.284, 2.287, 2.290, 7.00}}) {
    double sum = 0;
    for (int phase = 0; phase < 64; ++phase) sum += BitsPerElement(2.25, row.tokens, 320 + phase);
    EXPECT_NEAR(BitsPerElement(2.25, row.tokens, 320), row.best, 5.1e-4);
    EXPECT_NEAR(sum / 64, row.mean, 5.1e-4);
    EXPECT_NEAR(BitsPerElement(2.25, row.tokens, 383), row.worst, 5.1e-4);
    EXPECT_NEAR(16 / (sum / 64), row.ratio, 7e-3);  // the page divides by the rounded mean
    // These lengths are multiples of 64, so LedgerAt is at the best phase.
    EXPECT_DOUBLE_EQ(LedgerAt({&kInt2, "oscar"}, 128, row.tokens, 64, 256).at_length,
                     BitsPerElement(2.25, row.tokens, 320));
  }
}

TEST(Ledger, ReproducesThePublishedFigures) {
  EXPECT_NEAR(LedgerAt({&kInt2, "oscar"}, 128, 131072, 64, 256).at_length, 2.2836, 5e-5);
  EXPECT_NEAR(LedgerAt({&kInt2, "oscar"}, 128, 32768, 64, 256).at_length, 2.3843, 5e-5);
  EXPECT_NEAR(BitsPerElement(2.5, 131072, 320), 2.533, 5e-4);  // fp32 scale and zero, as released
}

TEST(Ledger, CountsUnfilledSlotsOfTheLastPage) {
  // One token: a whole BF16 page.
  const BitsLedger one = LedgerAt({&kInt2, "naive"}, 128, 1, 64, 256);
  EXPECT_DOUBLE_EQ(one.at_length, 16);
  EXPECT_DOUBLE_EQ(one.allocated, 16 * 64);
  // 1000 tokens: B = 704; sink 64, body 640, recent 296 in 5 pages of which 24 slots are empty.
  const BitsLedger ledger = LedgerAt({&kInt2, "naive"}, 128, 1000, 64, 256);
  EXPECT_EQ(ledger.tokens.sink, 64);
  EXPECT_EQ(ledger.tokens.body, 640);
  EXPECT_EQ(ledger.tokens.recent, 296);
  EXPECT_DOUBLE_EQ(ledger.at_length, (16.0 * 360 + 2.25 * 640) / 1000);
  EXPECT_DOUBLE_EQ(ledger.allocated, (16.0 * 384 + 2.25 * 640) / 1000);
}

// baselines.md 6.4: from 300 tokens with a residual of 128 the keys of 256 are quantised.
TEST(Ledger, CountsUnitsOfTwoPages) {
  CodecInfo units = kInt2;
  units.encode_tokens = 128;
  EXPECT_EQ(LedgerAt({&units, ""}, 128, 300, 0, 0).tokens.body, 256);
  EXPECT_EQ(LedgerAt({&units, ""}, 128, 383, 0, 0).tokens.body, 256);
  EXPECT_EQ(LedgerAt({&units, ""}, 128, 384, 0, 0).tokens.body, 384);
  EXPECT_EQ(LedgerAt({&units, ""}, 128, 1000, 64, 256).tokens.body, 640);
}

TEST(Ledger, Bf16IsSixteenBitsAtEveryLength) {
  for (const int tokens : {64, 640, 131072}) {
    const BitsLedger ledger = LedgerAt({&kBf16, ""}, 64, tokens, 64, 256);
    EXPECT_EQ(ledger.payload, 16);
    EXPECT_EQ(ledger.steady, 16);
    EXPECT_EQ(ledger.at_length, 16);
    EXPECT_EQ(ledger.allocated, 16);
    EXPECT_EQ(ledger.tokens.body, 0);
  }
}

TEST(Ledger, AnEmptySequenceHoldsNothing) {
  const BitsLedger ledger = LedgerAt({&kInt2, "naive"}, 128, 0, 64, 256);
  EXPECT_EQ(ledger.at_length, 0);
  EXPECT_EQ(ledger.allocated, 0);
  EXPECT_EQ(ledger.payload, 2);
}

}  // namespace
}  // namespace oscar::pool
