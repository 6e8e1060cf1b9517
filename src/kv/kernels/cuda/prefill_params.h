// Struct that crosses to the prefill attention kernel (gpu.md 7.3). Plain data, no CUDA types.
#pragma once

#include <cstdint>

namespace oscar::kernels::cuda {

// Attention of the tokens of one chunk of one sequence, one layer, in common space (gpu.md 5.1), or,
// with row_queries, in separate spaces: then the first split has the BF16 pages alone.
// Queries go in aligned tiles of 64 positions, which all see the same encoded pages; rows of the
// chunk are in their BF16 pages already (LaunchAppend).
struct PrefillParams {
  const uint16_t* queries;   // bf16 [num_tokens, Hq, d]
  const float* beta;         // [num_tokens, Hq] f32: kappa * (q . mu_K) for encoded tokens, or null
  const float* value_mean;   // [kv_heads, d] f32, or null
  const uint8_t* code_pool;  // as DecodeParams
  const uint8_t* row_pool;   // as DecodeParams
  const int32_t* code_table;  // page ids; entry i: encoded page i behind the sink
  const int32_t* row_table;  // page ids by position: entry i has the BF16 rows 64 i .. 64 i + 63 of
                             // the sequence, where a query of the chunk sees them as such
  int32_t first_position;  // of the chunk
  int32_t num_tokens;
  int32_t sink;  // multiples of 64
  int32_t recent;
  int32_t kv_heads;
  int32_t group;
  float kappa;             // softmax scale * log2(e)
  int32_t num_splits;      // parts of the encoded pages (with row_queries one more); each writes a
                           // partial result
  float* partial_outputs;  // [num_splits, num_tokens * Hq, d] f32, normalised
  float* partial_lses;     // [num_splits, num_tokens * Hq], natural logs; as MergeParams
  const uint16_t* row_queries;  // bf16 [num_tokens, Hq, d] for BF16 rows, or null: as `queries`
  // The rotating key mean per query and page, [num_tokens, kv_heads, page_beta_stride,
  // page_beta_heads] f32 (RotatingMeanParams::page_beta); or null.
  const float* page_beta;
  int32_t page_beta_stride;
  int32_t page_beta_heads;
};

}  // namespace oscar::kernels::cuda
