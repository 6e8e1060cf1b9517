#include "src/engine/report/quantity.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "gtest/gtest.h"

namespace oscar::engine {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Quantity, BytesHaveThreeDigitsAndABinaryUnit) {
  for (const auto& [bytes, text] : {std::pair<double, const char*>{0, "0 B"}, {1, "1 B"}, {16.4, "16 B"}, {1023, "1023 B"}, {1024, "1.00 KiB"},
                                    {10 * 1024, "10.0 KiB"}, {100 * 1024, "100 KiB"}, {1047552, "1023 KiB"}, {1048063, "1023 KiB"},
                                    {1048064, "1.00 MiB"}, {1299227607, "1.21 GiB"}, {0x1p64, "16.0 EiB"}, {-1, "-"}, {std::nan(""), "-"}}) {
    EXPECT_EQ(FormatBytes(bytes), text) << bytes;
  }
}

TEST(Quantity, RatesOfBytes) {
  EXPECT_EQ(FormatBytesPerSecond(0), "0 B/s");
  EXPECT_EQ(FormatBytesPerSecond(12.9e6), "12.3 MiB/s");
  EXPECT_EQ(FormatBytesPerSecond(-1), "-");
  EXPECT_EQ(FormatBytesPerSecond(kInfinity), "-");
  EXPECT_EQ(FormatBytesPerSecond(std::nan("")), "-");
}

TEST(Quantity, DecimalsAreRoundedAndCarryTheirUnit) {
  EXPECT_EQ(FormatDecimal(2.2839, 2, "bits/element"), "2.28 bits/element");
  EXPECT_EQ(FormatDecimal(7, 0), "7");
  EXPECT_EQ(FormatDecimal(-0.001, 2), "0.00");
  EXPECT_EQ(FormatDecimal(-0.01, 2), "-0.01");
  EXPECT_EQ(FormatDecimal(std::nan(""), 2), "nan");
  EXPECT_EQ(FormatDecimal(-kInfinity, 2, "s"), "-inf s");
}

TEST(Quantity, SignificantDigitsSpanTheRangeOfDivergences) {
  for (const auto& [value, text] : {std::pair<double, const char*>{0, "0"}, {1, "1.00"}, {0.031249, "0.0312"}, {1234, "1234"},
                                    {12.34, "12.3"}, {0.0001, "0.000100"}, {8.123e-5, "8.12e-05"}, {999999.9, "1.00e+06"},
                                    {999.6, "1000"}, {-2.5, "-2.50"}, {9.999, "10.0"}}) {
    EXPECT_EQ(FormatSignificant(value, 3), text) << value;
  }
  EXPECT_EQ(FormatSignificant(kInfinity, 3), "inf");
  EXPECT_EQ(FormatSignificant(5, 1), "5");
}

TEST(Quantity, CountsAreGrouped) {
  for (const auto& [count, text] : {std::pair<int64_t, const char*>{0, "0"}, {999, "999"}, {1000, "1,000"}, {1234567, "1,234,567"},
                                    {-1000, "-1,000"}, {-999, "-999"}, {INT64_MIN, "-9,223,372,036,854,775,808"}}) {
    EXPECT_EQ(FormatCount(count), text);
  }
}

TEST(Quantity, DurationsReadLikeAClock) {
  for (const auto& [seconds, text] : {std::pair<double, const char*>{0, "0:00"}, {6.6, "0:07"}, {59.6, "1:00"}, {754, "12:34"},
                                      {3600, "1:00:00"}, {11045, "3:04:05"}, {4e5, ">99 h"}, {-1, "-"}, {kInfinity, "-"}}) {
    EXPECT_EQ(FormatDuration(seconds), text) << seconds;
  }
}

}  // namespace
}  // namespace oscar::engine
