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

}  // namespace oscar::base
