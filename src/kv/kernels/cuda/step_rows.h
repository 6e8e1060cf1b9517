// The rows of one decode step before attention, in one launch: QK norm and RoPE, new rows into their BF16 pages, queries as bf16, raw and
// in code space.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/kv/kernels/cuda/separate_space.h"

namespace oscar::kernels::cuda {

struct StepRowsParams {
  DeviceRows queries;  // [num_rows, Hq, d]
  DeviceRows keys;     // [num_rows, kv_heads, d]; null data: no rows to store, here and in `values`
  DeviceRows values;
  // Heads of queries and keys over their root mean square, times the gain; null: as they are.
  const float* query_gain;  // [d]
  const float* key_gain;    // [d]
  float epsilon;
  const float2* turns;  // cosine and sine of each pair [num_rows, pairs]; null: rows are turned already
  int32_t pairs;
  int32_t halves;  // pairs (i, i + pairs) instead of (2 i, 2 i + 1)

  const int32_t* positions;     // [num_rows], in device memory, as newest_pages
  const int32_t* newest_pages;  // [num_rows] BF16 page ids
  uint8_t* row_pool;            // layer base, as DecodeParams
  DeviceStatus* status;
  int32_t layer;
  int32_t num_rows;
  int32_t kv_heads;
  int32_t group;  // at most 16
  int32_t head_dim;

  HeadMatrices query_map;   // A_K^-T
  HeadVectors key_mean;     // constant
  float kappa;              // softmax scale * log2(e)
  uint16_t* raw;            // [num_rows, Hq, d] bf16
  uint16_t* in_code_space;  // likewise, or null: not wanted, as `beta`
  float* beta;              // [num_rows, Hq]: kappa (q . mu_K); null: there is no constant mean
};
cudaError_t LaunchStepRows(const StepRowsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels::cuda
