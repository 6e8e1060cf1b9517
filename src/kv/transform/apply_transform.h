// A KvTransform applied to rows of queries and outputs, dispatched to the best SIMD target. The encoder's side,
// y = (x - mu) A, is fused into demotion and takes apply_transform-inl.h directly.
#pragma once

#include "oscar/kv_transform.h"
#include "src/base/strided_rows.h"

namespace oscar::transform {

// q' = q A^-T, so that q' . y = q . (x - mu). head_dim a multiple of 16; in and out do not overlap.
void TransformQueries(const KvTransform& transform, base::StridedRows<const float> in, int num_rows, base::StridedRows<float> out);

// x_hat = y_hat A^-1, without the mean. Same conditions.
void ApplyInverse(const KvTransform& transform, base::StridedRows<const float> in, int num_rows, base::StridedRows<float> out);

}  // namespace oscar::transform
