// Filling of a FitReport: what the user should see before serving a profile (method.md 2.5 to 2.7).
#pragma once

#include "oscar/calibrate.h"
#include "src/kv/calibrate/moments.h"
#include "src/kv/calibrate/rotation.h"

namespace oscar::calibrate {

// A shared key basis serves a head badly when its most important channel carries more than this many times the mean
// importance: a Hadamard without any data reaches 1.72 on the layer of method.md 2.8. Simulated heads with unrelated bases and
// the released key spectra of Qwen3-4B give 1.2 to 1.6 for 2 heads, 1.4 to 2.5 for 4 and 1.6 to 3.1 for 8; SmolLM2-135M (3
// heads) has 1.4 to 2.3.
inline constexpr double kMaxSharedSpread = 1.7;

// Condition, spectrum and orthogonality of one fitted basis; the worst of the layer's heads stays.
void AddRotation(const FittedRotation& fitted, KvSide side, FitReport::Layer* layer);
// Importance spread of the next KV head: max/mean of diag(R^T C_Q(h) R).
void AddHeadSpread(const Matrix& rotation, const Matrix& query_covariance, FitReport::Layer* layer);
// k_convergence: relative Frobenius difference of the query moments, mean over heads, at 3/4 and at the end; worst
// layer.
void AddConvergence(const MomentAccumulator::Impl& moments, FitReport* report);
// One warning that names the worst head of all layers when some spread is above kMaxSharedSpread.
void AddSharingWarning(FitReport* report);

}  // namespace oscar::calibrate
