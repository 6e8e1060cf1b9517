// Kernels around attention in separate spaces (method.md 6.1, online mode): BF16 rows are raw, encoded pages lie in code
// space. Queries go to both, the two partial results are joined after the encoded one came back through A_V^-1. f32 rows of
// the engine in, f32 rows out. All run in the given stream, allocate nothing and wait for nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/kv/kernels/cuda/device_status.h"

namespace oscar::kernels::cuda {

// Rows [tokens, heads, d] f32, the last dimension contiguous, strides in elements, 16-byte aligned.
struct DeviceRows {
  const float* data;
  int64_t token_stride;
  int64_t head_stride;
};
// [d, d] f32 row-major of KV head h at data + h * head_stride; null data: the identity.
struct HeadMatrices {
  const float* data;
  int64_t head_stride;  // 0: shared
};
// [d] f32 of KV head h at data + h * head_stride, or null.
struct HeadVectors {
  const float* data;
  int64_t head_stride;
};

inline constexpr int kMostStoredPages = 16;

// New f32 rows of one layer into their BF16 pages, rounded to nearest even.
struct StoreRowsParams {
  DeviceRows keys;
  DeviceRows values;
  int32_t pages[kMostStoredPages];  // BF16 page ids by position / 64, from first_position / 64 on
  int32_t first_position;
  uint8_t* row_pool;  // layer base, as AppendParams
  DeviceStatus* status;
  int32_t layer;
  int32_t kv_heads;
  int32_t head_dim;
};
// cudaErrorInvalidValue for more tokens than the pages hold.
cudaError_t LaunchStoreRows(const StoreRowsParams& params, int num_tokens, cudaStream_t stream);

// Queries as bf16, raw and in code space: q A_K^-T.
struct SplitQueriesParams {
  DeviceRows queries;
  int32_t num_tokens;
  int32_t kv_heads;
  int32_t group;
  int32_t head_dim;
  HeadMatrices matrices;   // A_K^-T
  uint16_t* raw;           // [num_tokens, Hq, d]
  uint16_t* in_code_space;  // likewise, or null: not wanted
};
cudaError_t LaunchSplitQueries(const SplitQueriesParams& params, cudaStream_t stream);

// out = the softmax join of (code A_V^-1 + mu_V) and rows. Partial results normalised, lse in natural logs, -inf: no tokens.
struct JoinSpacesParams {
  const float* code_outputs;  // [num_code_parts, num_tokens * Hq, d], code space
  const float* code_lses;     // [num_code_parts, num_tokens * Hq]
  int32_t num_code_parts;     // 0: nothing is encoded
  const float* row_outputs;   // [num_tokens * Hq, d]
  const float* row_lses;      // [num_tokens * Hq]
  DeviceRows queries;         // raw; read where the keys have a constant mean
  HeadMatrices matrices;      // A_V^-1
  HeadVectors value_mean;
  HeadVectors key_mean;  // constant: scores of encoded tokens gain scale * (q . mu_K)
  float scale;
  float* out;  // rows as `queries`
  int64_t out_token_stride;
  int64_t out_head_stride;
  int32_t num_tokens;
  int32_t kv_heads;
  int32_t group;
  int32_t head_dim;
};
cudaError_t LaunchJoinSpaces(const JoinSpacesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels::cuda
