// The encoders of the affine row, vectorised over channels: finite check, rank clip (clip.h), grid (encoder.h), codes. Bit for
// bit what reference.cc makes of the same row, on every target: no FMA, IEEE division, fixed rounding (method.md 3.1).
#if defined(OSCAR_SRC_KV_CODEC_AFFINE_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_CODEC_AFFINE_ENCODE_INL_H_
#undef OSCAR_SRC_KV_CODEC_AFFINE_ENCODE_INL_H_
#else
#define OSCAR_SRC_KV_CODEC_AFFINE_ENCODE_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/base/simd_extra-inl.h"
#include "src/kv/codec/affine/clip.h"
#include "src/kv/codec/affine/encoder.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;
using base::HWY_NAMESPACE::U32Tag;
using base::HWY_NAMESPACE::U32Vec;

inline bool AllFinite(const float* HWY_RESTRICT y, size_t d) {
  const F32Tag df;
  const U32Tag du;
  const U32Vec exponent = hn::Set(du, 0x7F800000u);
  auto finite = hn::Eq(exponent, exponent);
  for (size_t c = 0; c < d; c += kLanes) {
    finite = hn::And(finite, hn::Ne(hn::And(hn::BitCast(du, hn::LoadU(df, y + c)), exponent), exponent));
  }
  return hn::AllTrue(du, finite);
}

// ClipThreshold of clip.h. Rows of bf16 numbers, whose lower 16 bits are zero, need half the steps.
inline float SelectMagnitude(const float* HWY_RESTRICT y, size_t d, int index) {
  const F32Tag df;
  const U32Tag du;
  const hn::RebindToSigned<F32Tag> di;
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  U32Vec any_bits = hn::Zero(du);
  for (size_t c = 0; c < d; c += kLanes) any_bits = hn::Or(any_bits, hn::BitCast(du, hn::LoadU(df, y + c)));
  const bool bf16 = hn::AllTrue(du, hn::Eq(hn::And(any_bits, hn::Set(du, 0xFFFFu)), hn::Zero(du)));
  uint32_t threshold = 0;
  for (int bit = 30; bit >= (bf16 ? 16 : 0); --bit) {
    const uint32_t candidate = threshold | (1u << bit);
    const auto limit = hn::Set(di, static_cast<int32_t>(candidate));
    size_t num_below = 0;
    for (size_t c = 0; c < d; c += kLanes) {
      const auto magnitude = hn::And(hn::BitCast(di, hn::LoadU(df, y + c)), magnitude_bits);
      num_below += hn::CountTrue(di, hn::Lt(magnitude, limit));
    }
    if (num_below <= static_cast<size_t>(index)) threshold = candidate;
  }
  return std::bit_cast<float>(threshold);
}

inline void ClampRow(float* HWY_RESTRICT y, size_t d, float threshold) {
  const F32Tag df;
  const F32Vec high = hn::Set(df, threshold), low = hn::Set(df, -threshold);
  for (size_t c = 0; c < d; c += kLanes) hn::StoreU(hn::Min(hn::Max(hn::LoadU(df, y + c), low), high), df, y + c);
}

struct Extremes {
  float lowest, highest;
};
inline Extremes FindExtremes(const float* HWY_RESTRICT y, size_t d) {
  const F32Tag df;
  F32Vec lowest = hn::LoadU(df, y), highest = lowest;
  for (size_t c = kLanes; c < d; c += kLanes) {
    const F32Vec value = hn::LoadU(df, y + c);
    lowest = hn::Min(lowest, value);
    highest = hn::Max(highest, value);
  }
  return {hn::GetLane(hn::MinOfLanes(df, lowest)), hn::GetLane(hn::MaxOfLanes(df, highest))};
}

// codes [d] u8 from clamped level numbers in 0 .. largest_code.
HWY_INLINE void StoreCodes(F32Vec level, float largest_code, uint8_t* HWY_RESTRICT codes) {
  const F32Tag df;
  const hn::RebindToSigned<F32Tag> di;
  const hn::Rebind<uint8_t, F32Tag> d8;
  const F32Vec clamped = hn::Min(hn::Max(level, hn::Zero(df)), hn::Set(df, largest_code));
  hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(di, clamped)), d8, codes);
}

// code = clamp(floor((y - offset) r + 0.5), 0, L)
template <int kBits>
void EncodeMinMax(const float* HWY_RESTRICT y, size_t d, const RowGrid& grid, uint8_t* HWY_RESTRICT codes) {
  const F32Tag df;
  const F32Vec shift = hn::Set(df, grid.shift), reciprocal = hn::Set(df, grid.reciprocal), half = hn::Set(df, 0.5f);
  for (size_t c = 0; c < d; c += kLanes) {
    const F32Vec steps = hn::Mul(hn::Sub(hn::LoadU(df, y + c), shift), reciprocal);
    StoreCodes(hn::Floor(hn::Add(steps, half)), static_cast<float>((1 << kBits) - 1), codes + c);
  }
}

// code = clamp(round_even(y / s) + z, 0, L)
template <int kBits>
void EncodeIntegerZeroPoint(const float* HWY_RESTRICT y, size_t d, const RowGrid& grid, uint8_t* HWY_RESTRICT codes) {
  const F32Tag df;
  const F32Vec step = hn::Set(df, grid.step), zero = hn::Set(df, grid.zero);
  for (size_t c = 0; c < d; c += kLanes) {
    StoreCodes(hn::Add(hn::Round(hn::Div(hn::LoadU(df, y + c), step)), zero), static_cast<float>((1 << kBits) - 1), codes + c);
  }
}

// Encodes one transformed row y [d] (clipped in place). False when a value is not finite or the grid is beyond fp16.
// Precondition: CheckRowProfile accepts `row`, whose encoder is not error feedback; d a multiple of 16.
template <int kBits>
bool EncodeRow(float* HWY_RESTRICT y, size_t d, const RowProfile& row, RowGrid& grid, uint8_t* HWY_RESTRICT codes) {
  constexpr int kLargestCode = (1 << kBits) - 1;
  if (!AllFinite(y, d)) return false;
  if (row.clip_ratio > 0.0f) {
    ClampRow(y, d, SelectMagnitude(y, d, ClipIndex(row.clip_ratio, static_cast<int>(d))));
  }
  if (row.encoder == EncoderKind::kLloydAffine) return EncodeLloydAffine(y, d, row.range_factor, grid, codes);
  const Extremes extremes = FindExtremes(y, d);
  const bool min_max = row.encoder == EncoderKind::kMinMax;
  const bool fits = min_max ? MinMaxGrid(extremes.lowest, extremes.highest, kLargestCode, grid)
                            : IntegerZeroPointGrid(extremes.lowest, extremes.highest, row.range_factor, kLargestCode, grid);
  if (!fits) return false;
  if (grid.constant) {
    for (size_t c = 0; c < d; ++c) codes[c] = 0;
  } else if (min_max) {
    EncodeMinMax<kBits>(y, d, grid, codes);
  } else {
    EncodeIntegerZeroPoint<kBits>(y, d, grid, codes);
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#endif
