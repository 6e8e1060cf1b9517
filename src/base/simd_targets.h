// The SIMD targets that Highway code is compiled for. Include before any Highway header, in every file that uses one, so
// that all dispatch tables agree. SSSE3 and SSE4 are left out to save compile time: x86 machines without AVX2 take the
// portable scalar target. Scalable vectors are left out because our register tiles are arrays of vectors; Arm uses NEON.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// Every 64-bit Arm has NEON, so there is nothing to dispatch. With dispatch Highway 1.0.3 compiles it for processors that encrypt, which not all do and
// which GCC then does not inline into constructors of ours. This is the one switch that it has for it.
#if defined(__aarch64__)
#define TOOLCHAIN_MISS_SYS_AUXV_H
#endif
