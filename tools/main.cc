// The program `oscar`: parses the subcommand and calls it. Each subcommand is one file.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fmt/format.h>
#include <iostream>
#include <set>
#include <string>
#include <system_error>

#include "oscar/version.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"

namespace {

// Names of the options that take lists.
void CollectLists(const CLI::App& app, std::set<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_delimiter() == '\0') continue;
    for (const std::string& name : option->get_lnames()) names.insert("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) CollectLists(*command, names);
}

// "--window: '576,,640' has an empty item": CLI11 drops such items without a word. Empty when there are none.
std::string EmptyItemError(const CLI::App& app, int argc, char** argv) {
  std::set<std::string> lists;
  CollectLists(app, lists);
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i], value;
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < argc) {
      value = argv[i + 1];
    }
    if (!lists.contains(name)) continue;
    if (value.empty() || value.front() == ',' || value.back() == ',' || value.find(",,") != std::string::npos) {
      return name + ": '" + value + "' has an empty item";
    }
  }
  return "";
}

// What was printed into a full disk or a closed pipe is not done.
int EndOutput(const std::string& command, int exit_code) {
  errno = 0;
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || exit_code != 0) return exit_code;
  return oscar::tools::Fail(command, {oscar::StatusCode::kIoError, "standard output: " + std::string(errno != 0 ? std::strerror(errno) : "cannot be written")});
}

}  // namespace

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
  if (const std::string error = EmptyItemError(app, argc, argv); !error.empty()) {
    return oscar::tools::Fail(argv[1], {oscar::StatusCode::kInvalidArgument, error});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version: CLI11 prints them
      app.exit(error);
      std::cout.flush();
      return EndOutput("oscar", 0);
    }
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
  } catch (const std::system_error& error) {  // of fmt::print
    return oscar::tools::Fail(app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name(),
                              {oscar::StatusCode::kIoError, "standard output: " + error.code().message()});
  } catch (const std::exception& error) {
    return oscar::tools::Fail(app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name(),
                              {oscar::StatusCode::kInternal, error.what()});
  }
  return EndOutput(app.get_subcommands()[0]->get_name(), exit_code);
}
