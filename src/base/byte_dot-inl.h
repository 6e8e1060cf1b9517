// Dot products of bytes, the gap of Highway 1.0.3 that integer attention needs: each 32-bit lane holds four unsigned bytes,
// which are multiplied with four signed ones and summed. Exact on every target. x86 from AVX2 on, and 64-bit Arm.
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
#define OSCAR_TARGET_HAS_BYTE_DOTS (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64))
// Targets on which some processors have an instruction for the whole dot product (HasByteDotInstruction).
#define OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION (OSCAR_TARGET_HAS_BYTE_DOTS && HWY_TARGET != HWY_AVX2)

HWY_BEFORE_NAMESPACE();
namespace oscar::base {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using I32Tag = hn::RebindToSigned<F32Tag>;
using I32Vec = hn::Vec<I32Tag>;

#if OSCAR_TARGET_HAS_BYTE_DOTS

// Products of neighbours, summed in pairs in 16 bits; which neighbours share a lane is known to SumPairs alone. Precondition: no sum of pairs exceeds
// 16 bits, so unsigned bytes are at most 127.
#if HWY_TARGET == HWY_NEON
// Arm multiplies eight bytes at a time, into lanes of their own: pairs meet once all products are summed.
struct PairSums {
  int16x8_t lower, upper;
};
HWY_INLINE PairSums BytePairDots(U32Vec bytes, I32Vec coefficients) {
  const int8x16_t a = vreinterpretq_s8_u32(bytes.raw), b = vreinterpretq_s8_s32(coefficients.raw);
  return {vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)};
}
HWY_INLINE PairSums AddBytePairDots(U32Vec bytes, I32Vec coefficients, PairSums sums) {
  const int8x16_t a = vreinterpretq_s8_u32(bytes.raw), b = vreinterpretq_s8_s32(coefficients.raw);
  return {vmlal_s8(sums.lower, vget_low_s8(a), vget_low_s8(b)), vmlal_high_s8(sums.upper, a, b)};
}
HWY_INLINE I32Vec AddSumsOfPairs(PairSums sums, I32Vec to) { return I32Vec(vpadalq_s16(to.raw, vpaddq_s16(sums.lower, sums.upper))); }
#else
using PairSums = hn::Vec<hn::Repartition<int16_t, I32Tag>>;
HWY_INLINE PairSums BytePairDots(U32Vec bytes, I32Vec coefficients) {
#if HWY_TARGET == HWY_AVX3
  return {_mm512_maddubs_epi16(bytes.raw, coefficients.raw)};
#else
  return {_mm256_maddubs_epi16(bytes.raw, coefficients.raw)};
#endif
}
HWY_INLINE PairSums AddBytePairDots(U32Vec bytes, I32Vec coefficients, PairSums sums) { return hn::Add(sums, BytePairDots(bytes, coefficients)); }
HWY_INLINE I32Vec AddSumsOfPairs(PairSums sums, I32Vec to) {
  const hn::Repartition<int16_t, I32Tag> d16;
#if HWY_TARGET == HWY_AVX3
  return hn::Add(to, I32Vec{_mm512_madd_epi16(sums.raw, hn::Set(d16, 1).raw)});
#else
  return hn::Add(to, I32Vec{_mm256_madd_epi16(sums.raw, hn::Set(d16, 1).raw)});
#endif
}
#endif

#if OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION
// Precondition: HasByteDotInstruction(). In assembly because the instruction is no part of this target: GCC would inline its
// intrinsic only into functions compiled for processors that are sure to have it.
HWY_INLINE I32Vec AddByteDots(U32Vec bytes, I32Vec coefficients, I32Vec sum) {
#if HWY_TARGET == HWY_NEON
  // Both operands signed, which is the same for unsigned bytes of at most 127.
  __asm__(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(bytes.raw), "w"(coefficients.raw));
#else
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(bytes.raw), "v"(coefficients.raw));
#endif
  return sum;
}
#endif

// sums[v] += sum over q of quads[q][v] . coefficients[q], where a coefficient is four signed bytes for all lanes. Unsigned bytes
// are at most 15 and kQuads at most 8, so that 16 bits hold a sum of pairs.
template <bool kInstruction, int kQuads, int kVectors>
HWY_INLINE void AddQuadDots(const U32Vec (&quads)[kQuads][kVectors], const int32_t* HWY_RESTRICT coefficients, I32Vec (&sums)[kVectors]) {
  const I32Tag di;
  if constexpr (kInstruction) {
#if OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION
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
      PairSums pairs = BytePairDots(quads[0][v], coefficient[0]);
#pragma GCC unroll 8
      for (int q = 1; q < kQuads; ++q) pairs = AddBytePairDots(quads[q][v], coefficient[q], pairs);
      sums[v] = AddSumsOfPairs(pairs, sums[v]);
    }
  }
}

#endif  // OSCAR_TARGET_HAS_BYTE_DOTS

}  // namespace HWY_NAMESPACE
}  // namespace oscar::base
HWY_AFTER_NAMESPACE();

#endif
