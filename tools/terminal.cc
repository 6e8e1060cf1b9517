#include "tools/terminal.h"

#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <unistd.h>

#include "src/engine/report/progress.h"

namespace oscar::tools {
namespace {

std::atomic<bool> interrupted{false};

void OnInterrupt(int) {
  if (interrupted.exchange(true)) _exit(130);
}

}  // namespace

const std::atomic<bool>& Interrupted() { return interrupted; }
void ClearInterrupt() { interrupted = false; }

void CatchInterrupts() {
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
  if (!std::getline(std::cin, line)) return std::nullopt;
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
