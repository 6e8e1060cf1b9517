// Launches whose start overlaps the end of their predecessor in the stream. Every kernel launched so calls
// WaitForPredecessors before it reads or writes anything but weights.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace oscar::engine {

__device__ __forceinline__ void WaitForPredecessors() { cudaGridDependencySynchronize(); }
// Lets the next kernel start when every CTA of this one has called it or ended.
__device__ __forceinline__ void LaunchDependents() { cudaTriggerProgrammaticLaunchCompletion(); }

struct LaunchShape {
  dim3 grid;
  unsigned threads;
  cudaStream_t stream;
  std::size_t shared_bytes = 0;  // dynamic
};

template <class... Params, class... Arguments>
cudaError_t LaunchOverlapped(void (*kernel)(Params...), const LaunchShape& shape, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.stream = shape.stream;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(arguments)...);
}

}  // namespace oscar::engine
