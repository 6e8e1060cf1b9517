// Checks of our own invariants. OSCAR_CHECK is always on and aborts with the expression, the text and the place;
// OSCAR_DCHECK is for costly ones, on in debug and sanitizer builds. Errors of inputs are a Status, never a check.
#pragma once

#include <string_view>

namespace oscar::base {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression, std::string_view detail);

}  // namespace oscar::base

#define OSCAR_CHECK(condition)                                                              \
  do {                                                                                      \
    if (!(condition)) ::oscar::base::CheckFailed(__FILE__, __LINE__, #condition, {});       \
  } while (false)
#define OSCAR_CHECK_MSG(condition, detail)                                                  \
  do {                                                                                      \
    if (!(condition)) ::oscar::base::CheckFailed(__FILE__, __LINE__, #condition, (detail)); \
  } while (false)

#if defined(OSCAR_ENABLE_DCHECK) || !defined(NDEBUG)
#define OSCAR_DCHECK(condition) OSCAR_CHECK(condition)
#else
#define OSCAR_DCHECK(condition) static_cast<void>(0)
#endif
