#include "src/engine/ops/ops.h"

namespace oscar::engine {

Result<std::unique_ptr<Ops>> MakeOps(Device device, int num_threads, int max_tokens, BatchRounding rounding, WeightPrecision precision) {
  if (precision == WeightPrecision::kFp8 && (device != Device::kCuda || rounding == BatchRounding::kInvariant)) {
    return {StatusCode::kUnsupported, "FP8 weights are for a CUDA device, in products that may depend on their batch"};
  }
  if (device == Device::kCpu) return MakeCpuOps(num_threads, max_tokens, rounding);
#ifdef OSCAR_CUDA
  return MakeCudaOps(num_threads, max_tokens, rounding, precision);
#else
  return {StatusCode::kUnsupported, "this build has no CUDA: configure it with -DOSCAR_CUDA=ON"};
#endif
}

}  // namespace oscar::engine
