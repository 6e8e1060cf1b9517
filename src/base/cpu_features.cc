#include "src/base/cpu_features.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace oscar::base {

bool HasByteDotInstruction() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0;
  return has;
#elif defined(__aarch64__) && defined(__linux__)
  static const bool has = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return has;
#else
  return false;
#endif
}

bool HasAvx512ByteProducts() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                          __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("avx2") != 0;
  return has && HasByteDotInstruction();
#else
  return false;
#endif
}

}  // namespace oscar::base
