// What the row codecs share: packed codes, unaligned fp16 metadata, and the two affine quantisers of a group of values
// (baselines.md 4 and 6.4). All in f32 without fused operations: the bytes are the same on every machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/base/float_bits.h"

namespace oscar::codec {

inline void StoreF16(uint16_t bits, std::byte* at) { std::memcpy(at, &bits, 2); }
inline float LoadF16(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return base::F32FromF16(bits);
}

// Bytes of `count` codes in a bit string.
constexpr std::size_t CodeBytes(int bits, std::size_t count) { return (static_cast<std::size_t>(bits) * count + 7) / 8; }

// Code i lies at bits [bits i, bits i + bits) of a little-endian bit string. The string is all zero before.
inline void PutCode(int bits, std::size_t i, unsigned code, std::byte* string) {
  const std::size_t bit = static_cast<std::size_t>(bits) * i;
  const unsigned shifted = code << (bit % 8);
  string[bit / 8] |= static_cast<std::byte>(shifted & 0xFF);
  if (bit % 8 + static_cast<std::size_t>(bits) > 8) string[bit / 8 + 1] |= static_cast<std::byte>(shifted >> 8);
}
inline unsigned GetCode(int bits, std::size_t i, const std::byte* string) {
  const std::size_t bit = static_cast<std::size_t>(bits) * i;
  unsigned word = std::to_integer<unsigned>(string[bit / 8]);
  if (bit % 8 + static_cast<std::size_t>(bits) > 8) word |= std::to_integer<unsigned>(string[bit / 8 + 1]) << 8;
  return word >> (bit % 8) & ((1u << bits) - 1);
}

// x_hat = offset + scale * code, both as stored.
struct GroupGrid {
  uint16_t scale_f16 = 0, offset_f16 = 0;
  bool fits() const { return (scale_f16 & 0x7C00) != 0x7C00 && (offset_f16 & 0x7C00) != 0x7C00; }
};

// Values of one group, `stride` floats apart.
struct GroupValues {
  const float* first;
  std::size_t count, stride;
  float operator[](std::size_t i) const { return first[i * stride]; }
};

struct Range {
  float lowest, highest;
};
inline Range RangeOf(const GroupValues& x) {
  Range range{x[0], x[0]};
  for (std::size_t i = 1; i < x.count; ++i) {
    range.lowest = std::min(range.lowest, x[i]);
    range.highest = std::max(range.highest, x[i]);
  }
  return {range.lowest + 0.0f, range.highest + 0.0f};  // no negative zeros
}

// The stored row of method.md 3.1: codes against the rounded pair, halves up; a scale of 0 gives codes 0. Calls put(i, code).
template <class Put>
GroupGrid EncodeHalfUp(const GroupValues& x, int largest_code, const Put& put) {
  const Range range = RangeOf(x);
  const GroupGrid grid{base::F16FromF32((range.highest - range.lowest) / static_cast<float>(largest_code)), base::F16FromF32(range.lowest)};
  const float scale = base::F32FromF16(grid.scale_f16), offset = base::F32FromF16(grid.offset_f16);
  const float reciprocal = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (std::size_t i = 0; grid.fits() && i < x.count; ++i) {
    const float level = std::floor((x[i] - offset) * reciprocal + 0.5f);
    put(i, scale == 0.0f ? 0u : static_cast<unsigned>(std::clamp(level, 0.0f, static_cast<float>(largest_code))));
  }
  return grid;
}

enum class HalfRounding { kEven, kUp };

// KIVI and Kitty: codes from the pair before its rounding to fp16. smallest_range is a floor of max - min; a group without range
// has codes 0. Calls put(i, code).
template <class Put>
GroupGrid EncodeUnrounded(const GroupValues& x, int largest_code, float smallest_range, HalfRounding rounding, const Put& put) {
  const Range range = RangeOf(x);
  const float scale = std::max(range.highest - range.lowest, smallest_range) / static_cast<float>(largest_code);
  const GroupGrid grid{base::F16FromF32(scale), base::F16FromF32(range.lowest)};
  for (std::size_t i = 0; grid.fits() && i < x.count; ++i) {
    const float steps = scale == 0.0f ? 0.0f : std::clamp((x[i] - range.lowest) / scale, 0.0f, static_cast<float>(largest_code));
    put(i, static_cast<unsigned>(rounding == HalfRounding::kEven ? std::nearbyint(steps) : std::floor(steps + 0.5f)));
  }
  return grid;
}

// QuaRot and RotateKV (baselines.md 5.3): lo, hi = range_factor times min, max; s = (hi - lo) / L, z = round_even(-lo / s), code =
// clamp(round_even(x / s) + z, 0, L); x_hat = (code - z) s with both rounded to fp16 last. Where fp16 rounds s to 0 the group is
// the constant fp16(min). Calls put(i, code).
template <class Put>
GroupGrid EncodeIntegerZero(const GroupValues& x, int largest_code, float range_factor, const Put& put) {
  const Range range = RangeOf(x);
  const float low = range.lowest * range_factor, scale = (range.highest * range_factor - low) / static_cast<float>(largest_code);
  const uint16_t scale_f16 = base::F16FromF32(scale);
  if (scale_f16 == 0) return {0, base::F16FromF32(range.lowest)};
  const float zero = std::nearbyint(-low / scale);
  const GroupGrid grid{scale_f16, base::F16FromF32(-zero * scale + 0.0f)};
  for (std::size_t i = 0; grid.fits() && i < x.count; ++i) {
    put(i, static_cast<unsigned>(std::clamp(std::nearbyint(x[i] / scale) + zero, 0.0f, static_cast<float>(largest_code))));
  }
  return grid;
}

}  // namespace oscar::codec
