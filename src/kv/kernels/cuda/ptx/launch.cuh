// Programmatic dependent launch: overlap of a kernel's start with the end of its predecessor. No-ops before sm_90 and
// when the kernel was launched without the attribute.
#pragma once

namespace oscar::kernels::cuda::ptx {

// Waits until the kernels before this one have finished and their writes are visible.
__device__ __forceinline__ void WaitForPredecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start when every CTA of this one has called it or ended.
__device__ __forceinline__ void LaunchDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace oscar::kernels::cuda::ptx
