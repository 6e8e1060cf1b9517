#include "src/base/machine_ceiling.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "src/base/thread_pool.h"

namespace oscar::base {
namespace {

TEST(MachineCeiling, ByteDotsAreTheSumsOfTheirProducts) {
  int32_t result = 0x01010101;  // four coefficients of 1 for the bytes 3, 2, 1 and 3
  const int64_t done = RunByteDots(5, &result);
  if (done == 0) GTEST_SKIP() << "no dot products of bytes on this processor";
  EXPECT_EQ(result, 0x01010101 + 16 * 5 * (3 + 2 + 1 + 3));  // a lane of each of the 16 vectors
  EXPECT_EQ(done % (5 * 16 * 4), 0);
}

TEST(MachineCeiling, RatesArePositiveAndAsManyAsRepeats) {
  ThreadPool pool(2);
  const std::vector<double> reads = ReadRates(pool, 1 << 20, 3);
  ASSERT_EQ(reads.size(), 3u);
  EXPECT_GT(*std::min_element(reads.begin(), reads.end()), 0);
  for (const double rate : ByteDotRates(pool, 2)) EXPECT_GT(rate, 0);
}

}  // namespace
}  // namespace oscar::base
