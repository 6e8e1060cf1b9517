#include "src/engine/bench/peer_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstring>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/bench/resident_memory.h"

namespace oscar::engine {
namespace {

constexpr int kNoProgram = 127;  // exit status of a child whose program cannot be started, as in a shell

Status SystemError(const std::string& what) { return {StatusCode::kInternal, "bench: " + what + ": " + std::strerror(errno)}; }

}  // namespace

Result<std::unique_ptr<PeerProcess>> PeerProcess::Start(const std::vector<std::string>& command) {
  // A socket, not a pipe: writing to a child that has ended is then an error and not a signal.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return SystemError("no socket for " + command.front());
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(kNoProgram);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return SystemError("cannot start " + command.front());
  }
  std::unique_ptr<PeerProcess> peer(new PeerProcess(ends[0], child));
  Result<std::string> name = peer->ReadLine();
  if (!name.ok()) {
    if (name.status().code() == StatusCode::kCancelled) return name.status();
    int status = 0;
    while (waitpid(std::exchange(peer->child_, -1), &status, 0) < 0 && errno == EINTR) {
    }
    const bool is_missing = WIFEXITED(status) && WEXITSTATUS(status) == kNoProgram;
    return {StatusCode::kNotFound, command.front() + (is_missing ? ": no such program" : ": ended before it had said what it is")};
  }
  peer->name_ = std::move(name).value();
  if (const size_t space = peer->name_.find(' '); space != std::string::npos) {
    int64_t bytes = 0;
    const char* const end = peer->name_.data() + peer->name_.size();
    const auto [last, error] = std::from_chars(peer->name_.data() + space + 1, end, bytes);
    if (error != std::errc() || last != end || bytes < 0) {
      return {StatusCode::kInternal, "bench: " + command.front() + " opened with \"" + peer->name_ + "\", which is not NAME BYTES"};
    }
    peer->bytes_before_context_ = bytes;
    peer->name_.resize(space);
  }
  return peer;
}

PeerProcess::~PeerProcess() {
  close(socket_);
  if (child_ < 0) return;
  kill(child_, SIGKILL);  // it holds nothing, and one that hangs would not see the closed socket
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status PeerProcess::Send(const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) return {StatusCode::kCancelled, "interrupted"};
    if (count < 0) return SystemError(name_ + " takes no more steps");
    sent += static_cast<size_t>(count);
  }
  return {};
}

Result<std::string> PeerProcess::ReadLine() {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    char bytes[256];
    const ssize_t count = read(socket_, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) return {StatusCode::kCancelled, "interrupted"};
    if (count <= 0) return {StatusCode::kInternal, "bench: " + name_ + " ended in the middle of a step"};
    unread_.append(bytes, static_cast<size_t>(count));
  }
}

Status PeerProcess::Order(const std::string& line) {
  OSCAR_TRY(Send(line + '\n'));
  OSCAR_ASSIGN_OR_RETURN(const std::string answer, ReadLine());
  if (answer == "0 0") return {};
  return {StatusCode::kInternal, "bench: " + name_ + " answered \"" + line + "\" with \"" + answer + "\""};
}

Status PeerProcess::Clear() { return Order("clear"); }

Status PeerProcess::Fill(int tokens) { return Order("fill " + std::to_string(tokens)); }

std::optional<int64_t> PeerProcess::context_bytes() const {
  if (!bytes_before_context_) return std::nullopt;
  const std::optional<int64_t> bytes = AnonymousBytes(child_);
  if (!bytes) return std::nullopt;
  return *bytes - *bytes_before_context_;
}

Result<StepSeconds> PeerProcess::Step(std::span<const int32_t> tokens) {
  std::string text = std::to_string(tokens.size());
  for (const int32_t token : tokens) text += ' ' + std::to_string(token);
  OSCAR_TRY(Send(text + '\n'));
  OSCAR_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  StepSeconds seconds;
  const char* const end = line.data() + line.size();
  const auto [middle, wall_error] = std::from_chars(line.data(), end, seconds.wall);
  if (wall_error == std::errc() && middle != end && *middle == ' ') {
    const auto [last, processor_error] = std::from_chars(middle + 1, end, seconds.processor);
    if (processor_error == std::errc() && last == end && std::isfinite(seconds.wall) && seconds.wall > 0 && std::isfinite(seconds.processor) &&
        seconds.processor > 0) {
      return seconds;
    }
  }
  return {StatusCode::kInternal, "bench: " + name_ + " answered a step with \"" + line + "\""};
}

}  // namespace oscar::engine
