#include "tools/command_line.h"
#include "tools/validators.h"

#include <algorithm>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <string>
#include <unistd.h>

#include "oscar/codec.h"
#include "src/base/status_macros.h"
#include "src/engine/report/table.h"
#include "src/engine/runtime/calibration_run.h"

namespace oscar::tools {

int Fail(const std::string& command, const Status& status) {
  fmt::print(stderr, "oscar {}: error: {}\n", command, engine::SingleLine(status.message()));
  switch (status.code()) {
    case StatusCode::kCancelled: return kExitInterrupted;
    case StatusCode::kInvalidArgument: return kExitUsage;
    default: return kExitFailed;
  }
}

void Warn(const std::string& command, const std::string& message) {
  if (!message.empty()) fmt::print(stderr, "oscar {}: warning: {}\n", command, engine::SingleLine(message));
}

void AddModelOptions(CLI::App& app, engine::EngineOptions& options) {
  app.add_option("-m,--model", options.model, "Model: a .gguf file, or its name in the model cache (oscar inspect lists it)")
      ->required()
      ->type_name("FILE|NAME");
  app.add_option("-t,--threads", options.threads, "Compute threads (default: the cores this process may use)")->type_name("N");
  const std::map<std::string, engine::WeightPrecision> precisions{{"stored", engine::WeightPrecision::kStored},
                                                                  {"f32", engine::WeightPrecision::kF32},
                                                                  {"fp8", engine::WeightPrecision::kFp8}};
  app.add_option("--weights", options.weights,
                 "Weights as stored, or widened to f32: several times larger, but free of the 8-bit rounding of activations that stored weights bring; "
                 "or, on a GPU, rounded to FP8: half the bytes of a step")
      ->transform(OneOf(precisions))
      ->default_str("stored")
      ->type_name("stored|f32|fp8");
}

void AddDeviceOption(CLI::App& app, engine::EngineOptions& options) {
  const std::map<std::string, engine::Device> devices = {{"cpu", engine::Device::kCpu}, {"cuda", engine::Device::kCuda}};
  app.add_option("--device", options.device, "Where to compute: cpu, or cuda in builds with OSCAR_CUDA (default: cpu)")
      ->transform(OneOf(devices))
      ->type_name("cpu|cuda");
}

void AddContextOption(CLI::App& app, engine::EngineOptions& options) {
  app.add_option("-c,--ctx", options.context, "Context in tokens (default, and 0: 4096, or what the model was trained for if less)")
      ->type_name("TOKENS");
}

void AddWindowOptions(CLI::App& app, engine::EngineOptions& options) {
  app.add_option("--sink", options.sink, "First tokens kept in BF16, a multiple of 64")->capture_default_str()->type_name("TOKENS");
  app.add_option("--recent", options.recent, "Newest tokens kept in BF16, a multiple of 64")->capture_default_str()->type_name("TOKENS");
}

std::string KvMethodNames() {
  std::string names;
  for (const CodecInfo& codec : ListCodecs()) {
    if (codec.methods.empty()) names += std::string(names.empty() ? "" : ", ") + std::string(codec.name);
    for (const std::string_view method : codec.methods) {
      names += fmt::format("{}{}:{}", names.empty() ? "" : ", ", codec.name, method);
    }
  }
  return names;
}

void AddKvOptions(CLI::App& app, engine::EngineOptions& options) {
  app.add_option("--kv", options.kv, "KV cache: " + KvMethodNames())
      ->capture_default_str()
      ->type_name("METHOD");
  app.add_option("--profile", options.profile, "Calibrated profile (default: the one beside the model)")->type_name("FILE");
  AddEncodeEffortOption(app, options);
}

void AddMethodsOptions(CLI::App& app, std::vector<std::string>& methods, engine::EngineOptions& options, const std::string& role) {
  app.add_option("--kv", methods, fmt::format("Methods, each METHOD or METHOD=PROFILE, {}: {}", role, KvMethodNames()))
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("METHOD[=FILE],...");
  app.add_option("--profile", options.profile, "Calibrated profile of the one method that needs it (default: the one beside the model)")->type_name("FILE");
  AddEncodeEffortOption(app, options);
}

void AddEncodeEffortOption(CLI::App& app, engine::EngineOptions& options) {
  app.add_option("--encode-effort", options.encode_effort,
                 "Work of balanced encoders: 0 plain rounding, 1 error feedback, 2 feedback and two sweeps (default: 2)")
      ->type_name("0|1|2");
}

Status CheckOutputFile(const std::string& option, const std::filesystem::path& path, std::span<const std::filesystem::path> inputs) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return {StatusCode::kInvalidArgument, option + " " + path.string() + (std::filesystem::is_directory(path, error) ? ": is a folder" : ": is no regular file")};
  }
  for (const std::filesystem::path& input : inputs) {
    if (std::filesystem::equivalent(path, input, error)) return {StatusCode::kInvalidArgument, option + " " + path.string() + ": is also read, and would be lost"};
  }
  const std::filesystem::path folder = path.parent_path().empty() ? "." : path.parent_path();
  if (!std::filesystem::is_directory(folder, error)) return {StatusCode::kNotFound, option + " " + path.string() + ": there is no folder " + folder.string()};
  if (access(folder.c_str(), W_OK) != 0) return {StatusCode::kIoError, option + " " + path.string() + ": the folder cannot be written to"};
  return {};
}

void AddSamplingOptions(CLI::App& app, engine::SamplingParams& params) {
  app.add_option("--temperature", params.temperature, "0 is greedy")->capture_default_str()->type_name("T");
  app.add_option("--top-k", params.top_k, "Sample from the K most likely tokens; 0: off")->capture_default_str()->type_name("K");
  app.add_option("--top-p", params.top_p, "Sample from the most likely tokens of this total probability")->capture_default_str()->type_name("P");
  app.add_option("--min-p", params.min_p, "Drop tokens below this share of the best one's probability")->capture_default_str()->type_name("P");
  app.add_option("--repetition-penalty", params.repetition_penalty, "1: off")->capture_default_str()->type_name("X");
  app.add_option("--presence-penalty", params.presence_penalty, "-2 to 2")->capture_default_str()->type_name("X");
  app.add_option("--frequency-penalty", params.frequency_penalty, "-2 to 2")->capture_default_str()->type_name("X");
  app.add_option("--penalty-tokens", params.penalty_tokens, "Last tokens the penalties look at; 0: all")->capture_default_str()->type_name("N");
  app.add_option("--seed", params.seed, "Seed of the draws (default: from the system; printed)")
      ->check(Seed())
      ->type_name("N");
}

Status CheckSamplingOptions(const engine::SamplingParams& params) {
  const Status status = engine::ValidateSamplingParams(params);
  if (status.ok()) return status;
  // "top_k 5: ..." of a request is the option --top-k.
  std::string text = "--" + status.message();
  std::replace(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(std::min(text.find(' '), text.size())), '_', '-');
  return {status.code(), std::move(text)};
}

Result<std::vector<engine::KvSetup>> SetUpMethods(const std::string& command, const engine::Engine& engine,
                                                  const std::vector<std::string>& arguments) {
  std::vector<engine::KvSetup> setups;
  const std::string shared_profile = engine.options().profile.string();
  const auto takes_shared = [](const std::string& argument) { return argument.find('=') == std::string::npos && engine::IsCalibrated(argument); };
  if (!shared_profile.empty()) {
    const auto takers = std::count_if(arguments.begin(), arguments.end(), takes_shared);
    if (takers == 0) return {StatusCode::kInvalidArgument, "--profile " + shared_profile + ": none of the methods takes it"};
    if (takers > 1) return {StatusCode::kInvalidArgument, "--profile " + shared_profile + ": several methods need one; give each its own as METHOD=FILE"};
  }
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (equals + 1 == argument.size()) return {StatusCode::kInvalidArgument, "--kv " + argument + ": no file behind the '='"};
    const std::string profile = equals != std::string::npos ? argument.substr(equals + 1) : takes_shared(argument) ? shared_profile : "";
    OSCAR_ASSIGN_OR_RETURN(engine::KvSetup setup, engine.SetUpKv(argument.substr(0, equals), profile));
    Warn(command, setup.warning);
    setups.push_back(std::move(setup));
  }
  if (engine.options().encode_effort && std::none_of(setups.begin(), setups.end(), engine::TakesEncodeEffort)) {
    return {StatusCode::kInvalidArgument, "--encode-effort: none of the methods has error feedback"};
  }
  return setups;
}

}  // namespace oscar::tools
