// Storing rows as bf16 (round to nearest even): how every K and V row enters the cache.
#if defined(OSCAR_SRC_KV_KERNELS_CPU_APPEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_APPEND_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_APPEND_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_APPEND_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "src/base/simd_extra-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// False when a stored value is not finite: NaN, infinity, or a finite value that rounds beyond bf16. head_dim a multiple of 16.
inline bool StoreRow(const float* HWY_RESTRICT row, int head_dim, uint16_t* HWY_RESTRICT stored) {
  using base::HWY_NAMESPACE::F32Tag;
  using base::HWY_NAMESPACE::kLanes;
  using base::HWY_NAMESPACE::U32Tag;
  const F32Tag df;
  const U32Tag du;
  const hn::Rebind<uint16_t, U32Tag> d16;
  const auto exponent = hn::Set(du, 0x7F800000u);
  auto finite = hn::Eq(exponent, exponent);
  for (int c = 0; c < head_dim; c += static_cast<int>(kLanes)) {
    const auto value = hn::LoadU(df, row + c);
    const auto bits = base::HWY_NAMESPACE::RoundedBf16Bits(value);
    // The input too: rounding carries some NaN patterns into other numbers.
    finite = hn::And(finite, hn::And(hn::Ne(hn::And(bits, exponent), exponent),
                                     hn::Ne(hn::And(hn::BitCast(du, value), exponent), exponent)));
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16, stored + c);
  }
  return hn::AllTrue(du, finite);
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
