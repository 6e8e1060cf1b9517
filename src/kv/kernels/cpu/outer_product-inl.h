// The micro-kernel of prefill attention: a tile of accumulators in registers; per step one vector of lanes (query rows) and a
// few broadcast coefficients (tokens of K, channels of V).
#if defined(OSCAR_SRC_KV_KERNELS_CPU_OUTER_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_OUTER_PRODUCT_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_OUTER_PRODUCT_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_OUTER_PRODUCT_INL_H_
#endif

#include <cstddef>

#include "src/base/simd_extra-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;

// Operands of step i: vector v at lanes + i lane_step + v kLanes, coefficient j at coefficients + i coefficient_step + j.
struct OuterProductOperands {
  size_t count;
  const float* lanes;
  size_t lane_step;
  const float* coefficients;
  size_t coefficient_step;
};

// acc[j][v] += sum over i of coefficient_j(i) * lane_v(i), in the order of i.
template <int kCoefficients, int kVectors>
HWY_INLINE void AddOuterProducts(const OuterProductOperands& operands, F32Vec (&acc)[kCoefficients][kVectors]) {
  const F32Tag d;
  const float* HWY_RESTRICT lanes = operands.lanes;
  const float* HWY_RESTRICT coefficients = operands.coefficients;
  for (size_t i = 0; i < operands.count; ++i) {
    F32Vec x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = hn::LoadU(d, lanes + v * kLanes);
#pragma GCC unroll 8
    for (int j = 0; j < kCoefficients; ++j) {
      const F32Vec c = hn::Set(d, coefficients[j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[j][v] = hn::MulAdd(x[v], c, acc[j][v]);
    }
    lanes += operands.lane_step;
    coefficients += operands.coefficient_step;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
