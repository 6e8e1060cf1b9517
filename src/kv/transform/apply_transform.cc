#include "src/kv/transform/apply_transform.h"

#include "src/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/transform/apply_transform.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kv/transform/apply_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::transform {
namespace HWY_NAMESPACE {

void QueriesForTarget(const KvTransform& transform, base::StridedRows<const float> in, int num_rows, base::StridedRows<float> out) {
  MapRows<true>(transform, transform.inverse_transposed(), in, num_rows, out);
}
void InverseForTarget(const KvTransform& transform, base::StridedRows<const float> in, int num_rows, base::StridedRows<float> out) {
  MapRows<true>(transform, transform.inverse(), in, num_rows, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::transform
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar::transform {

HWY_EXPORT(QueriesForTarget);
HWY_EXPORT(InverseForTarget);

void TransformQueries(const KvTransform& transform, base::StridedRows<const float> in, int num_rows, base::StridedRows<float> out) {
  HWY_DYNAMIC_DISPATCH(QueriesForTarget)(transform, in, num_rows, out);
}
void ApplyInverse(const KvTransform& transform, base::StridedRows<const float> in, int num_rows, base::StridedRows<float> out) {
  HWY_DYNAMIC_DISPATCH(InverseForTarget)(transform, in, num_rows, out);
}

}  // namespace oscar::transform
#endif  // HWY_ONCE
