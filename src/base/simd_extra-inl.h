// Gaps of Highway 1.0.3, domain-free: bf16 conversions with rounding to nearest even, a table lookup by the low bits of a word,
// a transposing load of four words of each row, reductions of several rows at once (x86, Arm), and exp2 with a bound. Included once per target.
#if defined(OSCAR_SRC_BASE_SIMD_EXTRA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_BASE_SIMD_EXTRA_INL_H_
#undef OSCAR_SRC_BASE_SIMD_EXTRA_INL_H_
#else
#define OSCAR_SRC_BASE_SIMD_EXTRA_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::base {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The vectors of all kernels: f32 lanes, at most 16, and words of the same count. kLanes divides 16.
using F32Tag = hn::CappedTag<float, 16>;
using U32Tag = hn::RebindToUnsigned<F32Tag>;
using F32Vec = hn::Vec<F32Tag>;
using U32Vec = hn::Vec<U32Tag>;
inline constexpr size_t kLanes = hn::MaxLanes(F32Tag());
// Registers that a tile of accumulators may count on.
inline constexpr bool kManyRegisters = (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON);

HWY_INLINE F32Vec F32FromBf16Lanes(const uint16_t* HWY_RESTRICT from) {
  const hn::Rebind<uint16_t, F32Tag> d16;
  return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(hn::PromoteTo(U32Tag(), hn::LoadU(d16, from))));
}

// The bits of bf16(value) in the upper half of each word. Equal to Bf16FromF32 for all that is not NaN.
HWY_INLINE U32Vec RoundedBf16Bits(F32Vec value) {
  const U32Tag du;
  const U32Vec bits = hn::BitCast(du, value);
  const U32Vec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::And(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))), hn::Set(du, 0xFFFF0000u));
}

// 2^kBits f32 values, first, first + 1, .., looked up by the bits of a word; kBits is 1, 2 or 4.
template <int kBits>
class BitLevels {
 public:
  explicit BitLevels(float first) {
    HWY_ALIGN float by_low[16], by_high[16];
    for (int i = 0; i < 16; ++i) {
      by_low[i] = first + static_cast<float>(i % kNumLevels);
      by_high[i] = first + static_cast<float>(i / kNumLevels % kNumLevels);
    }
    by_low_ = hn::Load(F32Tag(), by_low);
    by_high_ = hn::Load(F32Tag(), by_high);
  }

  // By the kBits lowest bits of each word; the others do not matter.
  HWY_INLINE F32Vec Lowest(U32Vec words) const {
#if HWY_TARGET == HWY_AVX3
    return F32Vec{_mm512_permutexvar_ps(words.raw, by_low_.raw)};
#elif HWY_TARGET == HWY_AVX2
    if constexpr (kBits <= 2) return F32Vec{_mm256_permutevar_ps(by_low_.raw, words.raw)};
#endif
    const F32Tag d;
    const hn::RebindToSigned<F32Tag> di;
    const F32Vec code = hn::ConvertTo(d, hn::BitCast(di, hn::And(words, hn::Set(U32Tag(), kNumLevels - 1u))));
    return hn::Add(code, hn::Set(d, hn::GetLane(by_low_)));
  }
  // By the kBits bits above them. A table that is looked up by all of these bits saves a shift for every other code.
  HWY_INLINE F32Vec SecondLowest(U32Vec words) const {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kBits <= 2) return F32Vec{_mm512_permutexvar_ps(words.raw, by_high_.raw)};
#elif HWY_TARGET == HWY_AVX2
    if constexpr (kBits == 1) return F32Vec{_mm256_permutevar_ps(by_high_.raw, words.raw)};
#endif
    return Lowest(hn::ShiftRight<kBits>(words));
  }

 private:
  static constexpr int kNumLevels = 1 << kBits;
  F32Vec by_low_, by_high_;
};

// out[k] lane j = 32-bit word k of the row that starts at row_at(j), k < 4. Rows are readable for 16 bytes.
#if HWY_TARGET == HWY_SCALAR
template <class RowAt>
HWY_INLINE void TransposeFourWords(const RowAt& row_at, U32Vec (&out)[4]) {
  for (size_t k = 0; k < 4; ++k) out[k] = hn::LoadU(U32Tag(), reinterpret_cast<const uint32_t*>(row_at(0)) + k);
}
#else
// Rows first, first + 4, first + 8, ... in the 128-bit blocks of one vector.
template <class D, class RowAt>
HWY_INLINE hn::Vec<D> LoadBlocksOfRows(D d, const RowAt& row_at, size_t first) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(row_at(first)));
  } else {
    const hn::Half<D> half;
    constexpr size_t kRowsOfHalf = hn::MaxLanes(D()) / 2;
    return hn::Combine(d, LoadBlocksOfRows(half, row_at, first + kRowsOfHalf), LoadBlocksOfRows(half, row_at, first));
  }
}

template <class RowAt>
HWY_INLINE void TransposeFourWords(const RowAt& row_at, U32Vec (&out)[4]) {
  const U32Tag du;
  const U32Vec row0 = LoadBlocksOfRows(du, row_at, 0), row1 = LoadBlocksOfRows(du, row_at, 1);
  const U32Vec row2 = LoadBlocksOfRows(du, row_at, 2), row3 = LoadBlocksOfRows(du, row_at, 3);
  const hn::Repartition<uint64_t, U32Tag> d64;
  const auto lower01 = hn::BitCast(d64, hn::InterleaveLower(du, row0, row1));
  const auto lower23 = hn::BitCast(d64, hn::InterleaveLower(du, row2, row3));
  const auto upper01 = hn::BitCast(d64, hn::InterleaveUpper(du, row0, row1));
  const auto upper23 = hn::BitCast(d64, hn::InterleaveUpper(du, row2, row3));
  out[0] = hn::BitCast(du, hn::InterleaveLower(d64, lower01, lower23));
  out[1] = hn::BitCast(du, hn::InterleaveUpper(d64, lower01, lower23));
  out[2] = hn::BitCast(du, hn::InterleaveLower(d64, upper01, upper23));
  out[3] = hn::BitCast(du, hn::InterleaveUpper(d64, upper01, upper23));
}
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
// Lane r < kRows of the result: op over all lanes of rows[r], grouped alike for every row and number of rows. At most 8 rows, and at most kLanes.
template <size_t kRows, class Op>
HWY_INLINE F32Vec ReduceRows(const F32Vec (&rows)[kRows], const Op& op) {
  const F32Tag d;
#if HWY_TARGET == HWY_AVX3
  static_assert(kRows <= 8);
  F32Vec halves[4];  // rows 2 i and 2 i + 1, each folded to half a vector
  for (size_t i = 0; i < 4; ++i) {
    const F32Vec first = rows[2 * i < kRows ? 2 * i : 0], second = rows[2 * i + 1 < kRows ? 2 * i + 1 : 0];
    halves[i] = op(hn::ConcatLowerLower(d, second, first), hn::ConcatUpperUpper(d, second, first));
  }
  F32Vec quarters[2];  // rows 4 i .. 4 i + 3
  for (size_t i = 0; i < 2; ++i) {
    const __m512 first = halves[2 * i].raw, second = halves[2 * i + 1].raw;
    quarters[i] = op(F32Vec{_mm512_shuffle_f32x4(first, second, _MM_SHUFFLE(2, 0, 2, 0))}, F32Vec{_mm512_shuffle_f32x4(first, second, _MM_SHUFFLE(3, 1, 3, 1))});
  }
  const F32Vec pairs = op(hn::InterleaveLower(d, quarters[0], quarters[1]), hn::InterleaveUpper(d, quarters[0], quarters[1]));
  const F32Vec reduced = op(pairs, F32Vec{_mm512_permute_ps(pairs.raw, _MM_SHUFFLE(1, 0, 3, 2))});
  HWY_ALIGN static constexpr int32_t kPlaces[16] = {0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13};
  return F32Vec{_mm512_permutexvar_ps(_mm512_load_si512(kPlaces), reduced.raw)};
#else
  static_assert(kRows <= kLanes && (kLanes == 8 || kLanes == 4));
  HWY_ALIGN float reduced[kLanes] = {};
  for (size_t r = 0; r < kRows; ++r) {
    F32Vec all = rows[r];
    if constexpr (kLanes == 8) all = op(all, hn::ConcatLowerUpper(d, all, all));
    all = op(all, hn::Shuffle1032(all));
    reduced[r] = hn::GetLane(op(all, hn::Shuffle2301(all)));
  }
  return hn::Load(d, reduced);
#endif
}
#endif

// 2^x for x <= 0, relative error at most 3e-7; 0 below -126, NaN for NaN. Minimax polynomial of degree 5 on [-1/2, 1/2]
// (relative error 7.5e-8), times a power of two made in the exponent.
HWY_INLINE F32Vec Exp2NonPositive(F32Vec x) {
  const F32Tag d;
  const F32Vec whole = hn::Round(x);
  const F32Vec f = hn::Sub(x, whole);
  F32Vec p = hn::Set(d, 0x1.5c08e6p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3d0c52p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b6e4p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf918p-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e428p-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET == HWY_AVX3
  // The same bits: the instruction scales by a power of two exactly and keeps a NaN.
  return F32Vec{_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), p.raw, whole.raw)};
#else
  const hn::RebindToSigned<F32Tag> di;
  const auto tiny = hn::Lt(x, hn::Set(d, -126.0f));
  // Lanes that are tiny or NaN may convert to anything; both are replaced or kept NaN below.
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, hn::Max(whole, hn::Set(d, -127.0f))));
  const F32Vec scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(tiny, hn::IfThenElse(hn::Eq(x, x), scaled, x));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::base
HWY_AFTER_NAMESPACE();

#endif
