// The sums behind BalancedMoments, per layer and KV head. Private to src/kv/calibrate.
#pragma once

#include <array>
#include <cstdint>
#include <Eigen/Core>
#include <memory>
#include <vector>

#include "oscar/calibrate.h"
#include "src/kv/calibrate/attention_weights.h"
#include "src/kv/calibrate/captured_rows.h"
#include "src/kv/calibrate/row_sums.h"

namespace oscar::calibrate {

// Rows of one layer on which errors are measured, spread over the tokens of the second pass. A constant: O(d^2) in all.
inline constexpr int kSampleRows = 32;

// Only lower triangles are summed.
struct BalancedHead {
  Matrix query;              // sum of q^T q over tokens and the g query heads
  Matrix output;             // sum of W_h^T W_h over the query heads of the group
  Eigen::VectorXd key_sum, value_sum;  // weighted by AttentionBlock::mass; keys turned back to position 0
  double weight = 0;                   // of both
  std::vector<float> key_mean, value_mean;  // [d], from the end of the first pass on
  std::vector<float> key_page_mean;         // mu(0) of key_mean; empty when keys do not turn
  Matrix key_covariance, value_covariance;  // sums around the means, weighted likewise
  double covariance_weight = 0;             // of both
  // For the comparison with int2:oscar: sum of w v^T v and of w, w of method.md 2.3; not for a head_dim without a Hadamard matrix.
  Matrix score_metric, scored_value;
  double score_weight = 0;
  std::vector<std::vector<float>> sample_keys, sample_values;  // bf16 numbers
};

// Consecutive tokens of a window, inside one aligned block of kBlockTokens positions, and the attention that they receive from
// later queries of the block, which attend over the block and the first tokens of the window.
struct AttentionBlock {
  int first_position = 0, num_tokens = 0;
  std::vector<uint16_t> keys, values;  // bf16 [num_tokens, Hkv, d]
  std::vector<uint16_t> sink_keys;     // bf16 [<= kSinkTokens, Hkv, d], the window's first
  std::vector<Eigen::VectorXf> mass;   // by KV head [kBlockTokens]: sum of p^2 over queries and query heads
};

struct BalancedLayer {
  std::array<int64_t, 2> num_tokens = {0, 0};  // by pass
  int64_t output_rows = 0;
  std::vector<BalancedHead> heads;
  AttentionBlock block;
  std::vector<int> sample_pages;  // page index of each sample row
};

}  // namespace oscar::calibrate

namespace oscar {

struct BalancedMoments::Impl {
  KvShape shape;
  RotaryEmbedding rotary;
  int64_t expected_tokens = 0;
  int pass = 0;  // passes that have ended
  std::vector<calibrate::BalancedLayer> layers;
  std::unique_ptr<calibrate::BalancedSums> sums;  // where rows are elsewhere: `layers` gets its sums at the end of a pass
  Status failed;                                  // of `sums` at the end of a pass
};

}  // namespace oscar
