#include "src/engine/bench/resident_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace oscar::engine {
namespace {

TEST(AnonymousBytes, GrowByWhatIsWritten) {
  constexpr int64_t kBytes = 64 << 20;
  const auto before = AnonymousBytes();
  ASSERT_TRUE(before.has_value());
  const auto memory = std::make_unique<char[]>(kBytes);
  std::memset(memory.get(), 1, kBytes);
  EXPECT_NEAR(static_cast<double>(*AnonymousBytes() - *before), static_cast<double>(kBytes), 4 << 20);
}

TEST(AnonymousBytes, AProcessThatIsNotThereHasNone) { EXPECT_FALSE(AnonymousBytes(0x7FFFFFFF).has_value()); }

}  // namespace
}  // namespace oscar::engine
