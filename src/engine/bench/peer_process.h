// Another engine as a child process that answers steps of tokens with the seconds they took: the other side of
// `oscar bench --against`. bench/baselines/llamacpp/step_server.cc is one, and says what the lines between the two are.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

// How long a step took; both above 0.
struct StepSeconds {
  double wall = 0;
  double processor = 0;  // of all threads of the process, those that spin included
};

class PeerProcess {
 public:
  // Runs `command` (program, then arguments) and waits until it says what it has opened, in one line: a name, and the anonymous bytes it had
  // before it made its context (which may be missing).
  static Result<std::unique_ptr<PeerProcess>> Start(const std::vector<std::string>& command);
  // Ends the child.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const std::string& name() const { return name_; }
  // One step of its sequence: the tokens follow those of the steps before. kInternal when it has ended or answers something else, kCancelled on a
  // signal.
  Result<StepSeconds> Step(std::span<const int32_t> tokens);
  // Empties the sequence.
  Status Clear();
  // Brings the sequence to `tokens`, which are no fewer than it has; what they hold does not matter.
  Status Fill(int tokens);
  // What the context has added to the memory of the process so far. Nothing when the peer did not say what it had before.
  std::optional<int64_t> context_bytes() const;

 private:
  PeerProcess(int socket, pid_t child) : socket_(socket), child_(child) {}
  Status Send(const std::string& text);
  Result<std::string> ReadLine();
  Status Order(const std::string& line);

  int socket_;
  pid_t child_;
  std::string name_, unread_;
  std::optional<int64_t> bytes_before_context_;
};

}  // namespace oscar::engine
