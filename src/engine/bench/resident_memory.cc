#include "src/engine/bench/resident_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace oscar::engine {

std::optional<int64_t> AnonymousBytes(pid_t process) {
  std::ifstream file("/proc/" + (process == 0 ? std::string("self") : std::to_string(process)) + "/statm");
  int64_t total = 0, resident = 0, of_files = 0;
  if (!(file >> total >> resident >> of_files)) return std::nullopt;
  return (resident - of_files) * sysconf(_SC_PAGESIZE);
}

}  // namespace oscar::engine
