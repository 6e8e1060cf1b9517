#include "src/base/float_bits.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace oscar::base {
namespace {

TEST(FloatBits, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = F32FromF16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(F16FromF32(value), bits);
  }
}

TEST(FloatBits, HalfRoundsToNearestEvenLikeTheHardwareType) {
  for (uint32_t i = 0; i < 0xFFFFFFFFu - 9973; i += 9973) {
    const float value = std::bit_cast<float>(i);
    if (std::isnan(value)) continue;
#if defined(__aarch64__)
    const __fp16 expected = static_cast<__fp16>(value);  // GCC 12 knows the other name on x86 only
#else
    const _Float16 expected = static_cast<_Float16>(value);
#endif
    EXPECT_EQ(F16FromF32(value), std::bit_cast<uint16_t>(expected)) << value;
  }
}

TEST(FloatBits, Bf16RoundsTiesToEvenAndKeepsNan) {
  EXPECT_EQ(Bf16FromF32(1.0f), 0x3F80);
  EXPECT_EQ(Bf16FromF32(1.0f + 0x1p-8f), 0x3F80);            // tie, even below
  EXPECT_EQ(Bf16FromF32(1.0f + 3 * 0x1p-8f), 0x3F82);        // tie, even above
  EXPECT_TRUE(std::isnan(F32FromBf16(Bf16FromF32(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(Bf16FromF32(-0.0f), 0x8000);
}

}  // namespace
}  // namespace oscar::base
