// Structs that cross to the demotion kernel (gpu.md 7.2). Plain data, no CUDA types.
#pragma once

#include <cstdint>

#include "src/kv/kernels/cuda/device_status.h"

namespace oscar::kernels::cuda {

struct DemoteJob {
  int32_t row_page;   // BF16 page id
  int32_t code_page;  // encoded page id
};

// One side of a page. What a row meets before it is encoded: y = bf16((x - mean) matrix), fp32,
// products and sums rounded one by one in the order of the rows of the matrix, as on the CPU
// (src/kv/transform/apply_transform-inl.h).
struct DemoteSide {
  int32_t clip_index;    // method.md 3.2: index of the order statistic, or -1 for no clip
  const float* matrix;   // [d, d] row-major of (layer 0, head 0), 16-byte aligned; null on both
                         // sides: rows are in code space already
  int64_t layer_stride;  // floats between the matrices of layers and of KV heads; 0: shared
  int64_t head_stride;
  const float* mean;  // [d] of (layer 0, head 0), or null
  int64_t mean_layer_stride;
  int64_t mean_head_stride;
};

// The grid is (jobs x sides, KV heads, layers).
struct DemotePagesParams {
  const uint8_t* row_pool;  // layer l at + l * row_layer_stride; block of (page, head) at (page *
                            // kv_heads + head) * 256 d
  uint8_t* code_pool;  // layer l at + l * code_layer_stride; block at (page * kv_heads + head) *
                       // BlockBytes(bits, d)
  int64_t row_layer_stride;
  int64_t code_layer_stride;
  const DemoteJob* jobs;
  DeviceStatus* status;
  int32_t kv_heads;
  DemoteSide sides[2];  // key, value
  int32_t first_layer;  // of layer 0 of the launch, for the status
  int32_t bits = 2;     // of a code: 2, or 4 without a clip
};

}  // namespace oscar::kernels::cuda
