// Structs that cross to the demotion kernel (gpu.md 7.2). Plain data, no CUDA types.
#pragma once

#include <cstdint>

namespace oscar::kernels::cuda {

// First error of a launch, written by whoever comes first; all zero before. gpu.md 8.4.
struct DeviceStatus {
  int32_t code;  // 0: fine; 1: a value is not finite or a scale or offset overflows fp16
  int32_t layer;
  int32_t head;
  int32_t job;    // index of the page in DemotePagesParams::jobs
  int32_t token;  // slot in the page
  int32_t side;   // 0 key, 1 value
  int32_t unused_padding[2];
};
static_assert(sizeof(DeviceStatus) == 32);

struct DemoteJob {
  int32_t row_page;   // BF16 page id
  int32_t code_page;  // encoded page id
};

// Rows are in code space already (common space): clip, quantise, pack. The grid is (jobs, KV heads, layers).
struct DemotePagesParams {
  const uint8_t*
      row_pool;        // layer l at + l * row_layer_stride; block of (page, head) at (page * kv_heads + head) * 256 d
  uint8_t* code_pool;  // layer l at + l * code_layer_stride; block at (page * kv_heads + head) * BlockBytes(d)
  int64_t row_layer_stride;
  int64_t code_layer_stride;
  const DemoteJob* jobs;
  DeviceStatus* status;
  int32_t kv_heads;
  int32_t key_clip_index;  // method.md 3.2: index of the order statistic, or -1 for no clip
  int32_t value_clip_index;
};

}  // namespace oscar::kernels::cuda
