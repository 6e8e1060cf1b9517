#include "src/kv/codec/affine/device_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "src/kv/codec/affine/device_convert.h"
#include "src/testing/seeds.h"

namespace oscar::affine {
namespace {

using device::kTokens;

struct Rows {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, offsets;
  explicit Rows(int d) : codes(static_cast<size_t>(kTokens) * d), scales(kTokens), offsets(kTokens) {}
  PageSide Mutable() { return {codes, scales, offsets}; }
  ConstPageSide Const() const { return {codes, scales, offsets}; }
  bool operator==(const Rows&) const = default;
};

Rows RandomRows(std::mt19937_64& rng, int d, int bits) {
  Rows rows(d);
  for (uint8_t& code : rows.codes) code = static_cast<uint8_t>(rng() & ((1u << bits) - 1));
  for (uint16_t& scale : rows.scales) scale = static_cast<uint16_t>(rng());
  for (uint16_t& offset : rows.offsets) offset = static_cast<uint16_t>(rng());
  return rows;
}

class DeviceLayout : public ::testing::TestWithParam<int> {};

TEST_P(DeviceLayout, EveryCodeAndPairHasItsOwnBitsAndTheBlockIsFull) {
  const int d = GetParam();
  std::vector<int> bits(static_cast<size_t>(device::BlockBytes(d)) * 8, 0);
  for (int token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < d; ++dim) {
      for (const auto& place : {device::KeyCodePlace(d, token, dim), device::ValueCodePlace(d, token, dim)}) {
        ++bits[place.byte * 8 + place.shift];
        ++bits[place.byte * 8 + place.shift + 1];
      }
    }
    for (int bit = 0; bit < 32; ++bit) {
      ++bits[device::KeyPairOffset(d, token) * 8 + bit];
      ++bits[device::ValuePairOffset(d, token) * 8 + bit];
    }
  }
  for (size_t bit = 0; bit < bits.size(); ++bit) ASSERT_EQ(bits[bit], 1) << "bit " << bit;
}

// The kernel's view, written out independently: which code a lane finds where in its registers.
TEST_P(DeviceLayout, ALaneFindsTheCodesOfItsMatrixOperands) {
  const int d = GetParam();
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, t = lane % 4;
    for (int word = 0; word < 4; ++word) {
      for (int byte = 0; byte < 4; ++byte) {
        for (int field = 0; field < 4; ++field) {
          for (int base = 0; base + 128 <= d; base += 128) {
            for (int tile = 0; tile < 4; ++tile) {
              const int token = 16 * tile + row + 8 * (word >> 1);
              const int dim = base + 64 * (word & 1) + 16 * field + 4 * t + byte;
              const auto place = device::KeyCodePlace(d, token, dim);
              ASSERT_EQ(place.byte, base * 16 + tile * 512 + lane * 16 + word * 4 + byte);
              ASSERT_EQ(place.shift, 2 * field);
            }
          }
          if (d % 128 != 0) {
            for (int pair = 0; pair < 2; ++pair) {
              const auto place =
                  device::KeyCodePlace(d, 32 * pair + 8 * word + row, d - 64 + 16 * field + 4 * t + byte);
              ASSERT_EQ(place.byte, (d - 64) * 16 + pair * 512 + lane * 16 + word * 4 + byte);
              ASSERT_EQ(place.shift, 2 * field);
            }
          }
        }
      }
      for (int group = 0; group < d / 32; ++group) {
        for (int k = 0; k < 8; ++k) {
          for (int e = 0; e < 2; ++e) {
            const int token = 16 * (k >> 1) + 8 * (k & 1) + 2 * t + e;
            const auto place = device::ValueCodePlace(d, token, 32 * group + 8 * word + row);
            ASSERT_EQ(place.byte * 8 + place.shift, (16 * d + group * 512 + lane * 16 + word * 4) * 8 + 2 * k + 16 * e);
          }
        }
      }
    }
  }
}

TEST_P(DeviceLayout, RowsToBlockToRowsIsTheIdentity) {
  const int d = GetParam();
  std::mt19937_64 rng(testing::TestSeed(11 + d));
  for (const int bits : {1, 2, 4}) {
    SCOPED_TRACE(bits);
    const Rows key = RandomRows(rng, d, bits), value = RandomRows(rng, d, bits);
    std::vector<uint8_t> block(device::BlockBytes(bits, d), 0xFF);
    DeviceBlockFromRows(d, key.Const(), value.Const(), block, bits);
    Rows key_back(d), value_back(d);
    RowsFromDeviceBlock(d, block, key_back.Mutable(), value_back.Mutable(), bits);
    EXPECT_EQ(key, key_back);
    EXPECT_EQ(value, value_back);
    std::vector<uint8_t> again(block.size(), 0xFF);
    DeviceBlockFromRows(d, key_back.Const(), value_back.Const(), again, bits);
    EXPECT_EQ(block, again);
  }
}

// What the kernels make of a lane's 16 bytes: two pieces of 2-bit codes out of one of 1-bit codes, one out of a piece of each plane.
TEST_P(DeviceLayout, PiecesOfOneAndFourBitsAreThoseOfTwoBits) {
  const int d = GetParam();
  for (const bool is_key : {true, false}) {
    for (int token = 0; token < kTokens; ++token) {
      for (int dim = 0; dim < d; ++dim) {
        const auto two = device::PlanePlace(2, is_key, d, token, dim, 0), one = device::PlanePlace(1, is_key, d, token, dim, 0);
        const int piece = two.byte / 512;
        ASSERT_EQ(one.byte, piece / 2 * 512 + two.byte % 512);
        ASSERT_EQ(one.shift, two.shift + piece % 2);
        for (const int plane : {0, 1}) {
          const auto four = device::PlanePlace(4, is_key, d, token, dim, plane);
          ASSERT_EQ(four.byte, two.byte + plane * 16 * d);
          ASSERT_EQ(four.shift, two.shift);
        }
      }
    }
  }
}

TEST_P(DeviceLayout, EveryBf16ElementHasItsOwnPlaceAndEightTokensShareNoBank) {
  const int d = GetParam();
  std::set<int> places;
  for (int token = 0; token < kTokens; ++token) {
    for (int dim = 0; dim < d; ++dim) {
      places.insert(device::Bf16KeyOffset(d, token, dim));
      places.insert(device::Bf16ValueOffset(d, token, dim));
    }
  }
  EXPECT_EQ(places.size(), static_cast<size_t>(2 * kTokens) * d);
  EXPECT_EQ(*places.rbegin(), device::Bf16BlockBytes(d) - 2);
  for (int piece = 0; piece < d / 8; ++piece) {
    std::set<int> bank_groups;
    for (int token = 0; token < 8; ++token) bank_groups.insert(device::Bf16KeyOffset(d, token, 8 * piece) / 16 % 8);
    EXPECT_EQ(bank_groups.size(), 8u) << "piece " << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, DeviceLayout, ::testing::Values(64, 128, 192, 256));

}  // namespace
}  // namespace oscar::affine
