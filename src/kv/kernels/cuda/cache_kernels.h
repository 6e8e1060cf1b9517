// Launches of the kernels around attention that know no codec: the plan of a decode step, new rows
// into their BF16 pages, and the merge of partial results (gpu.md 5.11, 7.1, 7.4). All run in the
// given stream, allocate nothing and wait for nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/kv/kernels/cuda/decode_plan_cuts.h"
#include "src/kv/kernels/cuda/device_status.h"

namespace oscar::kernels::cuda {

struct PlanKernelParams {
  const int32_t* num_tokens;  // [num_sequences], the newest included; 0: a padded row
  int32_t num_sequences;      // 1 .. kMostPlannedSequences
  int32_t kv_heads;
  int32_t head_dim;
  int32_t num_ctas;  // of the decode launch, at most 1023
  int32_t sink;
  int32_t recent;
  int64_t whole_splits_below_bytes;  // as DecodePlanOptions
  DecodeStart* starts;               // [num_ctas]
  DecodeItem* items;  // [MostDecodeItems(...)]; entries without an item are not written
};
inline constexpr int kMostPlannedSequences = 2048;

// The plan of PlanDecode, made on the device: once per step, shared by all layers.
cudaError_t LaunchPlan(const PlanKernelParams& params, cudaStream_t stream);

// New rows of one layer into their BF16 pages, as they are: raw or in code space (gpu.md 5.1).
struct AppendParams {
  const uint16_t* keys;    // bf16 [num_tokens] rows of [kv_heads, d], `row_stride` elements apart,
                           // 16-byte aligned
  const uint16_t* values;  // likewise
  int64_t row_stride;      // a multiple of 8
  const int32_t* pages;    // [num_tokens] BF16 page id of each token
  const int32_t* slots;    // [num_tokens] slot in the page, 0 .. 63
  uint8_t* row_pool;       // layer base; block of (page, head) at (page * kv_heads + head) * 256 d
  DeviceStatus* status;
  int32_t layer;  // for the status
  int32_t kv_heads;
  int32_t head_dim;
};
cudaError_t LaunchAppend(const AppendParams& params, int num_tokens, cudaStream_t stream);

// What the rotating mean of the keys adds to the scores of page n: kappa (q . mu(n)), mu(n) =
// average of R_t m over the page's tokens (quality.md 3). A pair of dimensions (x, y) of the mean
// turns by an angle per page: with c the complex number of the pair at page 0, already averaged
// over a page, mu_x + i mu_y = c e^(i angle n).
struct RotatingPair {
  int32_t x, y;           // dimensions; x == y: a dimension that does not turn, real
  float real, imaginary;  // c
};
struct RotatingMeanParams {
  const uint16_t* queries;    // bf16 [B, Hq, d], in the space of the means
  const RotatingPair* pairs;  // [kv_heads, num_pairs]
  const float2* turns;  // [num_pairs, turn_stride]: cos and sin of angle * n; shared by all heads,
                        // layers and sequences
  float* page_beta;     // [B, kv_heads, num_pages, head_tile], as DecodeParams::page_beta
  int32_t num_pairs;    // at most 128
  int32_t num_pages;    // the stride of the code table
  int32_t kv_heads;
  int32_t group;      // query heads per KV head, at most 16
  int32_t head_tile;  // of the decode kernel: 4, 8 or 16
  int32_t head_dim;
  float kappa;
  int32_t turn_stride;  // entries of a row of `turns`; 0: num_pages
};
cudaError_t LaunchRotatingMean(const RotatingMeanParams& params, int num_sequences,
                               cudaStream_t stream);

// Normalised partial results of the same rows over disjoint tokens, joined in order: out = sum w_i
// o_i / sum w_i, w_i = exp(lse_i - max lse), natural logs, fp32. A part with lse = -inf has no
// tokens and is not read; without any, the result is zeros and -inf.
struct MergeParams {
  const float* outputs;  // [num_parts, num_rows, d]
  const float* lses;     // [num_parts, num_rows]
  int32_t num_parts;
  int32_t num_rows;
  int32_t head_dim;  // 64, 128, 192 or 256
  uint16_t* out;     // bf16 [num_rows, d], or null
  float* out_f32;    // [num_rows, d], or null
  float* out_lse;    // [num_rows], or null
};
cudaError_t LaunchMerge(const MergeParams& params, cudaStream_t stream);

}  // namespace oscar::kernels::cuda
