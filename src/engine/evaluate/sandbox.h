// Runs a program that nobody has read, code written by a model: in a process of its own without network, that can write
// nowhere but in an empty folder, with limits on time, memory, output and files. Linux: user, network, PID and IPC namespaces,
// Landlock, resource limits. Nothing is weakened silently: where the kernel refuses one of these, the run fails and says which.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

struct SandboxLimits {
  double wall_seconds = 10;
  uint64_t memory_bytes = uint64_t{2} << 30;  // address space
  uint64_t output_bytes = uint64_t{1} << 20;  // of stdout; more ends the run
  uint64_t file_bytes = uint64_t{16} << 20;   // largest file it may write
};

struct SandboxOutcome {
  enum class End { kExited, kSignalled, kTimedOut, kOutputTooLong };
  End end = End::kExited;
  int code = 0;              // exit status or signal
  std::string output;        // stdout, at most output_bytes
  std::string error_output;  // last 4 KiB of stderr
  double seconds = 0;
};

// Runs `command` (command[0] is looked up in PATH) with `input` on stdin and waits for it; every process it left is killed.
// kNotFound when there is no such program, kUnsupported naming what this kernel or container does not allow, kIoError otherwise.
Result<SandboxOutcome> RunSandboxed(const std::vector<std::string>& command, std::string_view input, const SandboxLimits& limits);

}  // namespace oscar::engine
