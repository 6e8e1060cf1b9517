// What the encoders of the affine row share between scalar, vector and device code: the grid of a row from its extremes.
// The loops over a row are EncodeMinMax and EncodeIntegerZeroPoint in encode-inl.h; the slow judge (reference.cc) has its own.
// All in f32, round to nearest, no fused multiply-add, IEEE division (method.md 3.1): the bytes must not depend on the machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "oscar/codec_profile.h"
#include "src/base/float_bits.h"

namespace oscar::affine {

// How a row is turned into codes: x_hat = offset + scale * code with the stored (fp16) pair.
struct RowGrid {
  uint16_t scale_f16 = 0;
  uint16_t offset_f16 = 0;
  // Codes are clamp(floor((y - shift) * reciprocal + 0.5)) for min-max, clamp(round_even(y / step) + zero) for the integer
  // zero point; all are 0 for a constant row.
  bool constant = false;
  float shift = 0, reciprocal = 0;
  float step = 0, zero = 0;
};

inline bool IsFiniteF16(uint16_t bits) { return (bits & 0x7C00) != 0x7C00; }

// Extremes of either sign of zero are stored as +0: which of them a vector minimum returns is up to the target.

// method.md 3.1 steps 4 and 5. largest_code = 2^bits - 1. False when scale or offset overflow fp16.
inline bool MinMaxGrid(float lowest, float highest, int largest_code, RowGrid& grid) {
  grid.offset_f16 = base::F16FromF32(lowest + 0.0f);
  grid.scale_f16 = base::F16FromF32((highest - lowest) / static_cast<float>(largest_code));
  const float scale = base::F32FromF16(grid.scale_f16);
  grid.constant = scale == 0.0f;
  grid.shift = base::F32FromF16(grid.offset_f16);
  grid.reciprocal = grid.constant ? 0.0f : 1.0f / scale;
  return IsFiniteF16(grid.scale_f16) && IsFiniteF16(grid.offset_f16);
}

// QuaRot (baselines.md 5.3): lo = c min, hi = c max, s = (hi - lo) / L, z = round_even(-lo / s); stored scale = s and
// offset = -z s, both rounded only after the codes are chosen. An all-zero row has lo, hi = -1, 1. Where the stored scale would
// be 0 the original divides by zero; here the row is the constant fp16(min). False when scale or offset overflow fp16.
inline bool IntegerZeroPointGrid(float lowest, float highest, float range_factor, int largest_code, RowGrid& grid) {
  float low = lowest * range_factor, high = highest * range_factor;
  if (low == 0.0f && high == 0.0f) low = -1.0f, high = 1.0f;
  grid.step = (high - low) / static_cast<float>(largest_code);
  grid.scale_f16 = base::F16FromF32(grid.step);
  grid.constant = base::F32FromF16(grid.scale_f16) == 0.0f;
  if (grid.constant) {
    grid.scale_f16 = 0;
    grid.offset_f16 = base::F16FromF32(lowest + 0.0f);
  } else {
    grid.zero = std::nearbyint(-low / grid.step);
    grid.offset_f16 = base::F16FromF32(-grid.zero * grid.step + 0.0f);
  }
  return IsFiniteF16(grid.scale_f16) && IsFiniteF16(grid.offset_f16);
}

// OSCAR's Lloyd-Max codes on a uniform grid (baselines.md 5.6), 2 bits: sigma^2 = population variance + 1e-8, code = number of -t,
// 0, t below (y - mean) / sigma, scale = (2 * 1.50956 / 3) ratio sigma, offset = mean - 1.5 scale. Sums in double, in the order of
// the channels, for the same bytes on every target. False when scale or offset overflow fp16.
inline bool EncodeLloydAffine(const float* y, std::size_t d, float ratio, RowGrid& grid, uint8_t* codes) {
  constexpr double kThreshold = 0.9810652732849121, kStep = 2 * 1.5095585584640503 / 3;
  double mean = 0, variance = 0;
  for (std::size_t c = 0; c < d; ++c) mean += static_cast<double>(y[c]);
  mean /= static_cast<double>(d);
  for (std::size_t c = 0; c < d; ++c) variance += (static_cast<double>(y[c]) - mean) * (static_cast<double>(y[c]) - mean);
  const double sigma = std::sqrt(variance / static_cast<double>(d) + 1e-8);
  const double scale = kStep * static_cast<double>(ratio) * sigma;
  grid.scale_f16 = base::F16FromF32(static_cast<float>(scale));
  grid.offset_f16 = base::F16FromF32(static_cast<float>(mean - 1.5 * scale));
  for (std::size_t c = 0; c < d; ++c) {
    const double z = (static_cast<double>(y[c]) - mean) / sigma;
    codes[c] = static_cast<uint8_t>((z > -kThreshold ? 1 : 0) + (z > 0 ? 1 : 0) + (z > kThreshold ? 1 : 0));
  }
  return IsFiniteF16(grid.scale_f16) && IsFiniteF16(grid.offset_f16);
}

// Transformed rows are rounded to bf16 before they are encoded, except for QuaRot, which works in f32 (baselines.md 5.3), and
// for error feedback, whose sums are f32 anyway.
constexpr bool RoundsTransformedRows(EncoderKind encoder) {
  return encoder != EncoderKind::kIntegerZeroPoint && encoder != EncoderKind::kErrorFeedback;
}

}  // namespace oscar::affine
