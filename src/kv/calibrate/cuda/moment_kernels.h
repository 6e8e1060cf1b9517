// Kernels behind the moments on a CUDA device: what moments.cc and balanced_moments.cc sum, over rows in device memory. Sums are in
// double and in a fixed order, so that a text gives the same moments every time. All run in the given stream, allocate nothing and
// wait for nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/kv/kernels/cuda/separate_space.h"

namespace oscar::calibrate {

using kernels::cuda::DeviceRows;

// The first value, counted as (token * heads + head) * d + channel, that is not finite in bf16; `first` keeps the least.
struct FindNonFiniteParams {
  DeviceRows rows;
  int32_t num_tokens, num_heads, head_dim;
  unsigned long long* first;
};
cudaError_t LaunchFindNonFinite(const FindNonFiniteParams& params, cudaStream_t stream);

// Rows of the heads of each KV head one after another, in double: out [kv_heads, num_tokens * group, d].
struct WidenRowsParams {
  DeviceRows rows;
  int32_t num_tokens, kv_heads, group, head_dim;
  bool rounds;            // to bf16 first
  const double* weights;  // [kv_heads, num_tokens]: a row is multiplied by the root of its weight; null: by 1. For group 1
  double* out;
};
cudaError_t LaunchWidenRows(const WidenRowsParams& params, cudaStream_t stream);

// sums[h] += rows[h]^T rows[h], lower triangles, column-major; more than these may be written.
struct OuterProductsParams {
  const double* rows;  // [num_heads, num_rows, d]
  double* sums;        // [num_heads, d, d]
  int32_t num_rows, num_heads, head_dim;  // a multiple of 32
};
cudaError_t LaunchOuterProducts(const OuterProductsParams& params, cudaStream_t stream);

// weights = max(0, x M x^T) of each row x.
struct ScoreWeightsParams {
  const double* rows;     // [num_heads, num_rows, d]
  const double* metrics;  // [num_heads, d, d], symmetric
  double* weights;        // [num_heads, num_rows]
  int32_t num_rows, num_heads, head_dim;
};
cudaError_t LaunchScoreWeights(const ScoreWeightsParams& params, cudaStream_t stream);
// sums[h] += all weights of h.
cudaError_t LaunchSumWeights(const double* weights, int num_rows, int num_heads, double* sums, cudaStream_t stream);

// AttentionBlock on the device.
struct DeviceBlock {
  int32_t first_position, num_tokens;
  int32_t kv_heads, head_dim;
  double weight_floor;  // of a token that receives nothing
  uint16_t* keys;       // bf16 [kBlockTokens, kv_heads, d]
  uint16_t* values;     // likewise
  uint16_t* sink_keys;  // bf16 [kSinkTokens, kv_heads, d]
  float* mass;          // [kv_heads, kBlockTokens]
};

// Rows into the block, behind its num_tokens; keys of the first kSinkTokens positions to the sinks as well.
cudaError_t LaunchStoreBlock(const DeviceBlock& block, const DeviceRows& keys, const DeviceRows& values, int num_tokens, cudaStream_t stream);

// Attention of some queries over the block up to their own position, and its squares into the mass of the tokens that are far enough.
struct BlockAttentionParams {
  DeviceBlock block;
  DeviceRows queries;      // every kQueryStride-th token, token_stride between these
  int32_t num_queries;     // at most kBlockTokens / kQueryStride
  int32_t first_in_block;  // tokens of the block that the first query sees, its own included
  int32_t num_sinks;       // sink keys that stand beside the block
  int32_t group;
  float scale;
  float* squares;          // scratch [num_queries, kv_heads * group, kBlockTokens]
};
cudaError_t LaunchBlockAttention(const BlockAttentionParams& params, cudaStream_t stream);

// Weighted sums of the keys, turned back to position 0, and of the values.
struct BlockMeansParams {
  DeviceBlock block;
  const int2* channels;  // [d / 2]: the two channels of a pair
  const double* angles;  // [d / 2] radians per position
  double* key_sums;      // [kv_heads, d]
  double* value_sums;    // [kv_heads, d]
  double* weights;       // [kv_heads]
};
cudaError_t LaunchBlockMeans(const BlockMeansParams& params, cudaStream_t stream);

// Rows of the block around their means, times the roots of their weights.
struct CentreBlockParams {
  DeviceBlock block;
  const float* key_means;    // [pages or 1, kv_heads, d], from the page of the block's first token on
  int64_t page_stride;       // 0: one mean for all pages
  const float* value_means;  // [kv_heads, d]
  double* keys;              // [kv_heads, num_tokens, d]
  double* values;
  double* weights;           // [kv_heads]: += the weights
};
cudaError_t LaunchCentreBlock(const CentreBlockParams& params, cudaStream_t stream);

}  // namespace oscar::calibrate
