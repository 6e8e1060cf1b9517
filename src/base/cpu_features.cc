#include "src/base/cpu_features.h"

namespace oscar::base {

bool HasAvx512Vnni() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vnni") != 0;
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
  return has && HasAvx512Vnni();
#else
  return false;
#endif
}

}  // namespace oscar::base
