// The matrices of the error-feedback encoder from the metric of a row description (quality.md 5). Made once per profile:
// encoding a row only multiplies.
#pragma once

#include <span>

#include "oscar/codec_profile.h"

namespace oscar::profile {

// Metrics that span more than this have no Cholesky factor worth the name in double; fitted ones span at most 1.6e7.
inline constexpr float kMaxMetricSpread = 1e10f;

// G = Q^T diag(metric) Q over its mean diagonal, and N of its Cholesky factor, in double, stored as f32.
// Precondition: `metric` [head_dim] is positive, finite, and spans at most kMaxMetricSpread.
ErrorFeedback DeriveErrorFeedback(int head_dim, std::span<const float> metric);

}  // namespace oscar::profile
