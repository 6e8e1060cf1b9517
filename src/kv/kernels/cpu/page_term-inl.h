// The constant score q . mu(n) that a turning key mean gives to all tokens of page n (quality.md 3): a dot of what the query made
// of the mean with how far the page has turned (transform/turning_mean.h).
#if defined(OSCAR_SRC_KV_KERNELS_CPU_PAGE_TERM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_PAGE_TERM_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_PAGE_TERM_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_PAGE_TERM_INL_H_
#endif

#include <cstddef>

#include "src/base/simd_extra-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {

// d is a multiple of 16.
HWY_INLINE float PageTerm(const float* HWY_RESTRICT terms, const float* HWY_RESTRICT phases, size_t d) {
  namespace hn = hwy::HWY_NAMESPACE;
  const base::HWY_NAMESPACE::F32Tag df;
  auto sum = hn::Zero(df);
  for (size_t i = 0; i < d; i += base::HWY_NAMESPACE::kLanes) sum = hn::MulAdd(hn::LoadU(df, terms + i), hn::LoadU(df, phases + i), sum);
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
