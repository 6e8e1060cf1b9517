#include "tools/terminal.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "src/engine/report/progress.h"

namespace oscar::tools {
namespace {

std::atomic<bool> interrupted{false};

int interrupt_event = -1;  // readable once a signal came; -1 before CatchInterrupts, and poll passes over it

void OnInterrupt(int) {
  if (interrupted.exchange(true)) _exit(130);
  const int kept = errno;
  const uint64_t one = 1;
  if (write(interrupt_event, &one, sizeof(one)) < 0) _exit(130);
  errno = kept;
}

}  // namespace

const std::atomic<bool>& Interrupted() { return interrupted; }

void ClearInterrupt() {
  uint64_t count = 0;
  if (interrupted.exchange(false) && read(interrupt_event, &count, sizeof(count)) < 0) interrupted = true;  // it came just now
}

void CatchInterrupts() {
  if (interrupt_event < 0) interrupt_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  struct sigaction action {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART, so that a read of the terminal returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }

std::optional<std::string> ReadLine(const std::string& prompt) {
  std::fputs(prompt.c_str(), stderr);
  std::string line;
  while (!line.ends_with('\n')) {
    // Whichever thread takes the signal, and whenever: what its handler writes wakes this up.
    pollfd inputs[2] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_event, POLLIN, 0}};
    if (poll(inputs, 2, -1) < 0 && errno != EINTR) return std::nullopt;
    if (interrupted) return std::nullopt;
    if (inputs[0].revents == 0) continue;
    char part[4096];
    const ssize_t count = read(STDIN_FILENO, part, sizeof(part));  // of a terminal: a line at most
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) {
      line.append(part, static_cast<size_t>(count));
    } else if (line.empty()) {
      return std::nullopt;
    } else {
      return line;  // the end of the input, with a line that is not ended
    }
  }
  line.pop_back();
  return line;
}

std::string ReadAllStdin() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

engine::RunControl ProgressControl(const std::string& label, bool quiet, const std::string& unit) {
  engine::ProgressOptions options;
  options.label = label;
  options.unit = unit;
  options.style = engine::ProgressStyleOf(stderr, quiet);
  const auto progress = std::make_shared<engine::Progress>(std::move(options));
  engine::RunControl control;
  control.progress = [progress](int64_t done, int64_t total) {
    progress->Update(static_cast<uint64_t>(done), static_cast<uint64_t>(total));
    if (done == total) progress->Finish();
  };
  control.cancelled = &Interrupted();
  return control;
}

}  // namespace oscar::tools
