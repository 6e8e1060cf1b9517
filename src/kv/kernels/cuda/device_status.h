// The error record of the device (gpu.md 8.4).
#pragma once

#include <cstdint>

namespace oscar::kernels::cuda {

// First error of the launches since it was cleared, written by whoever comes first; all zero
// before.
struct DeviceStatus {
  int32_t code;  // 0: fine; 1: a value is not finite or a scale or offset overflows fp16
  int32_t layer;
  int32_t head;
  int32_t job;    // demotion: index of the page in DemotePagesParams::jobs; append: index of the
                  // token in the launch
  int32_t token;  // slot in the page
  int32_t side;   // 0 key, 1 value
  int32_t unused_padding[2];
};
static_assert(sizeof(DeviceStatus) == 32);

#ifdef __CUDACC__
// Notes the error unless there is one already.
__device__ __forceinline__ void ReportNonFinite(DeviceStatus* status, const DeviceStatus& error) {
  if (atomicCAS(&status->code, 0, 1) != 0) return;
  status->layer = error.layer;
  status->head = error.head;
  status->job = error.job;
  status->token = error.token;
  status->side = error.side;
}
#endif

}  // namespace oscar::kernels::cuda
