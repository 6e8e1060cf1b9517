#include "src/engine/sample/philox.h"

#include <gtest/gtest.h>
#include <set>

namespace oscar::engine {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {  // Random123, kat_vectors
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DrawsDifferBySeedChoiceAndPositionAndFillTheInterval) {
  std::set<double> draws;
  double sum = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (uint32_t choice = 0; choice < 4; ++choice) {
      for (uint64_t position = 0; position < 1000; ++position) {
        const double draw = UniformAt(seed, choice, position);
        ASSERT_GE(draw, 0.0);
        ASSERT_LT(draw, 1.0);
        draws.insert(draw);
        sum += draw;
      }
    }
  }
  EXPECT_EQ(draws.size(), 12000u);
  EXPECT_NEAR(sum / 12000, 0.5, 0.01);
}

}  // namespace
}  // namespace oscar::engine
