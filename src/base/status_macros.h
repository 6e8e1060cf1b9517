// OSCAR_TRY(status expression): returns the error from the enclosing function, which returns Status or Result.
// OSCAR_ASSIGN_OR_RETURN(auto value, result expression): the same for a Result, and binds its value otherwise.
#pragma once

#include "oscar/result.h"

#define OSCAR_TRY(expression)                                        \
  do {                                                               \
    if (::oscar::Status oscar_try_status = (expression); !oscar_try_status.ok()) return oscar_try_status; \
  } while (false)

#define OSCAR_CONCAT_INNER(a, b) a##b
#define OSCAR_CONCAT(a, b) OSCAR_CONCAT_INNER(a, b)
#define OSCAR_ASSIGN_OR_RETURN(declaration, expression) \
  OSCAR_ASSIGN_OR_RETURN_INNER(OSCAR_CONCAT(oscar_result_, __LINE__), declaration, expression)
#define OSCAR_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return result.status();                           \
  declaration = std::move(result).value()
