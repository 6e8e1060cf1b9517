#include "src/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace oscar::base {

void CheckFailed(const char* file, int line, const char* expression, std::string_view detail) {
  std::fprintf(stderr, "oscar: check failed at %s:%d: %s%s%.*s\n", file, line, expression, detail.empty() ? "" : ": ",
               static_cast<int>(detail.size()), detail.data());
  std::abort();
}

}  // namespace oscar::base
