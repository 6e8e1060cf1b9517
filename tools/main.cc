// The program `oscar`: parses the subcommand and calls it. Each subcommand is one file.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <string>

#include "oscar/version.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"

int main(int argc, char** argv) {
  CLI::App app("oscar: LLM inference with a 2-bit KV cache", "oscar");
  app.set_version_flag("--version", "oscar " + std::string(oscar::kVersion));
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  int exit_code = 0;
  oscar::tools::AddRunCommand(app, exit_code);
  oscar::tools::AddServeCommand(app, exit_code);
  oscar::tools::AddCalibrateCommand(app, exit_code);
  oscar::tools::AddEvalCommand(app, exit_code);
  oscar::tools::AddBenchCommand(app, exit_code);
  oscar::tools::AddInspectCommand(app, exit_code);
  oscar::tools::AddRotationsCommand(app, exit_code);
  oscar::tools::AddPullCommand(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version: CLI11 prints them
    // One line, like every other error.
    std::string command;
    for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
      at = at->get_subcommands().front();
      command += (command.empty() ? "" : " ") + at->get_name();
    }
    std::string message = error.what();
    if (command.empty() && argc > 1 && argv[1][0] != '-') message = "no subcommand '" + std::string(argv[1]) + "'";
    std::replace(message.begin(), message.end(), '\n', ' ');
    fmt::print(stderr, "oscar{}{}: error: {}; see oscar {}{}--help\n", command.empty() ? "" : " ", command, message, command,
               command.empty() ? "" : " ");
    return oscar::tools::kExitUsage;
  } catch (const std::exception& error) {
    return oscar::tools::Fail(app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name(),
                              {oscar::StatusCode::kInternal, error.what()});
  }
  return exit_code;
}
