// The terminal: interrupts, lines typed by a person, progress.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "src/engine/runtime/progress_callback.h"

namespace oscar::tools {

// Set by the first Ctrl-C after CatchInterrupts; a second one ends the process at once.
const std::atomic<bool>& Interrupted();
void CatchInterrupts();
// Forgets an interrupt that was handled (interactive chat goes on after one).
void ClearInterrupt();

bool StdinIsTerminal();
// One line from stdin without its newline; nothing at end of input or on an interrupt.
std::optional<std::string> ReadLine(const std::string& prompt);
std::string ReadAllStdin();

// Progress on stderr under `label`, counted in `unit`; silent when `quiet`.
engine::RunControl ProgressControl(const std::string& label, bool quiet, const std::string& unit = "tokens");

}  // namespace oscar::tools
