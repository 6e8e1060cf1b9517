// Dot products of bytes, the gap of Highway 1.0.3 that integer attention needs: each 32-bit lane holds four unsigned bytes,
// which are multiplied with four signed ones and summed. Exact on every target. x86 from AVX2 on.
#if defined(OSCAR_SRC_BASE_BYTE_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_BASE_BYTE_DOT_INL_H_
#undef OSCAR_SRC_BASE_BYTE_DOT_INL_H_
#else
#define OSCAR_SRC_BASE_BYTE_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "src/base/simd_extra-inl.h"

// Of the target that is being compiled; for #if.
#define OSCAR_TARGET_HAS_BYTE_DOTS (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2)

HWY_BEFORE_NAMESPACE();
namespace oscar::base {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using I32Tag = hn::RebindToSigned<F32Tag>;
using I32Vec = hn::Vec<I32Tag>;

#if OSCAR_TARGET_HAS_BYTE_DOTS

// Pairs of products summed in 16 bits. Precondition: no pair of neighbours exceeds them, so unsigned bytes are at most 127.
HWY_INLINE hn::Vec<hn::Repartition<int16_t, I32Tag>> BytePairDots(U32Vec bytes, I32Vec coefficients) {
#if HWY_TARGET == HWY_AVX3
  return {_mm512_maddubs_epi16(bytes.raw, coefficients.raw)};
#else
  return {_mm256_maddubs_epi16(bytes.raw, coefficients.raw)};
#endif
}
HWY_INLINE I32Vec SumPairs(hn::Vec<hn::Repartition<int16_t, I32Tag>> words) {
  const hn::Repartition<int16_t, I32Tag> d16;
#if HWY_TARGET == HWY_AVX3
  return {_mm512_madd_epi16(words.raw, hn::Set(d16, 1).raw)};
#else
  return {_mm256_madd_epi16(words.raw, hn::Set(d16, 1).raw)};
#endif
}

#if HWY_TARGET == HWY_AVX3
// Precondition: HasAvx512Vnni(). In assembly because the instruction is no part of this target: GCC would inline its
// intrinsic only into functions compiled for processors that are sure to have it.
HWY_INLINE I32Vec AddByteDots(U32Vec bytes, I32Vec coefficients, I32Vec sum) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(bytes.raw), "v"(coefficients.raw));
  return sum;
}
#endif

// sums[v] += sum over q of quads[q][v] . coefficients[q], where a coefficient is four signed bytes for all lanes. Unsigned bytes
// are at most 15 and kQuads at most 8, so that 16 bits hold a sum of pairs.
template <bool kVnni, int kQuads, int kVectors>
HWY_INLINE void AddQuadDots(const U32Vec (&quads)[kQuads][kVectors], const int32_t* HWY_RESTRICT coefficients, I32Vec (&sums)[kVectors]) {
  const I32Tag di;
  if constexpr (kVnni) {
#if HWY_TARGET == HWY_AVX3
#pragma GCC unroll 8
    for (int q = 0; q < kQuads; ++q) {
      const I32Vec coefficient = hn::Set(di, coefficients[q]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[v] = AddByteDots(quads[q][v], coefficient, sums[v]);
    }
#endif
  } else {
    I32Vec coefficient[kQuads];
#pragma GCC unroll 8
    for (int q = 0; q < kQuads; ++q) coefficient[q] = hn::Set(di, coefficients[q]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      auto pairs = BytePairDots(quads[0][v], coefficient[0]);
#pragma GCC unroll 8
      for (int q = 1; q < kQuads; ++q) pairs = hn::Add(pairs, BytePairDots(quads[q][v], coefficient[q]));
      sums[v] = hn::Add(sums[v], SumPairs(pairs));
    }
  }
}

#endif  // OSCAR_TARGET_HAS_BYTE_DOTS

}  // namespace HWY_NAMESPACE
}  // namespace oscar::base
HWY_AFTER_NAMESPACE();

#endif
