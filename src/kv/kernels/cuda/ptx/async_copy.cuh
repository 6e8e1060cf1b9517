// Asynchronous copies from global to shared memory, one wrapper per instruction.
#pragma once

#include <cstdint>

// Bulk copies and barriers that count bytes exist from sm_90 on; OSCAR_CUDA_FORCE_PORTABLE builds
// as if they did not.
#if defined(OSCAR_CUDA_FORCE_PORTABLE) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900)
#define OSCAR_CUDA_BULK_COPY 0
#else
#define OSCAR_CUDA_BULK_COPY 1
#endif

namespace oscar::kernels::cuda::ptx {

// Cache policy word for data that is read once, lines leave L2 first: what
// createpolicy.fractional.L2::evict_first with fraction 1.0 gives.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;

// One bulk copy; `bytes`, both addresses: multiples of 16. Completes on the barrier, which must
// expect the bytes.
__device__ __forceinline__ void BulkCopy(uint32_t shared, const void* global, uint32_t bytes,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// 16 bytes per thread; zero-fills when `valid` is false (nothing is read then).
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}
// Closes a group of copies of this thread; waits until at most kNewest of its groups are under way.
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kNewest>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}
__device__ __forceinline__ void CopyAsyncWaitAll() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace oscar::kernels::cuda::ptx
