// The sums behind MomentAccumulator, per layer and KV head. Private to src/kv/calibrate.
#pragma once

#include <array>
#include <cstdint>
#include <Eigen/Core>
#include <memory>
#include <vector>

#include "oscar/calibrate.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/calibrate/row_sums.h"

namespace oscar::calibrate {

// Only lower triangles are summed; Impl::Full gives whole matrices.
struct HeadMoments {
  Matrix query;        // sum of q^T q over tokens and the g query heads [d, d]
  Matrix key;          // sum of k^T k [d, d]
  Matrix value;        // sum of w v^T v [d, d]; w = 1 for VMetric::kPlain; of attention outputs o^T o for kSoftmax
  double weight = 0;   // sum of w
  Matrix early_query;  // `query` after the first three quarters of the expected tokens; empty before
};

struct LayerMoments {
  std::array<int64_t, 2> num_tokens = {0, 0};  // by pass
  int64_t early_tokens = 0;                    // tokens in early_query
  int64_t output_tokens = 0;                   // of AddOutputs
  std::vector<HeadMoments> heads;
  std::vector<Matrix> score_metric;  // M_h of method.md 2.3, whole, from the end of the first pass on
};

}  // namespace oscar::calibrate

namespace oscar {

struct MomentAccumulator::Impl {
  KvShape shape;
  OscarFitOptions options;
  int pass = 0;  // passes that have ended
  std::vector<calibrate::LayerMoments> layers;
  std::unique_ptr<calibrate::MomentSums> sums;  // where rows are elsewhere: `layers` gets its sums at the end of a pass
  Status failed;                                // of `sums` at the end of a pass
};

}  // namespace oscar
