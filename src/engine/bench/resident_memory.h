// Memory of a process as the system counts it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace oscar::engine {

// Resident bytes of no file: heap, caches, anonymous maps; mapped weights do not count. 0: this process. Nothing where the system does not say.
std::optional<int64_t> AnonymousBytes(pid_t process = 0);

}  // namespace oscar::engine
