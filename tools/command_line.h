// The vocabulary of options that all subcommands share, and how they end: exit codes and the one line of an error.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/runtime/options.h"
#include "src/engine/sample/sampling_params.h"

namespace CLI {
class App;
}

namespace oscar::tools {

// Exit codes: 0 done; 1 the run failed; 2 the command line is wrong; 130 interrupted.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Prints "oscar COMMAND: error: MESSAGE" to stderr and gives the exit code of the status.
int Fail(const std::string& command, const Status& status);
// Prints "oscar COMMAND: warning: MESSAGE" to stderr, if there is one.
void Warn(const std::string& command, const std::string& message);

// -m and -t.
void AddModelOptions(CLI::App& app, engine::EngineOptions& options);
// --device.
void AddDeviceOption(CLI::App& app, engine::EngineOptions& options);
// -c.
void AddContextOption(CLI::App& app, engine::EngineOptions& options);
// --sink and --recent.
void AddWindowOptions(CLI::App& app, engine::EngineOptions& options);
// "bf16, int2:naive, ...": every method there is, for help texts.
std::string KvMethodNames();
// --kv and --profile for one method.
void AddKvOptions(CLI::App& app, engine::EngineOptions& options);
// --kv for several methods, --profile for the one of them that needs it, and --encode-effort. `role` ends the sentence about the methods.
void AddMethodsOptions(CLI::App& app, std::vector<std::string>& methods, engine::EngineOptions& options, const std::string& role);
// --encode-effort.
void AddEncodeEffortOption(CLI::App& app, engine::EngineOptions& options);
// Known before minutes of work: whether a file can be put there, with nothing lost but an older file of that name. kInvalidArgument for a folder, a device, and a file that is one of
// `inputs`; kNotFound and kIoError for its folder.
Status CheckOutputFile(const std::string& option, const std::filesystem::path& path, std::span<const std::filesystem::path> inputs);
// --temperature, --top-k, ...
void AddSamplingOptions(CLI::App& app, engine::SamplingParams& params);
// As ValidateSamplingParams, with the names of the options.
Status CheckSamplingOptions(const engine::SamplingParams& params);

// Sets up each "METHOD" or "METHOD=PROFILE" of a command that takes several, in order; warnings go to stderr. The engine's --profile is for the one calibrated method that
// names none: kInvalidArgument unless there is exactly one.
Result<std::vector<engine::KvSetup>> SetUpMethods(const std::string& command, const engine::Engine& engine,
                                                  const std::vector<std::string>& arguments);

}  // namespace oscar::tools
