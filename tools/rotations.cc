// `oscar rotations`: released rotation files (.pt) to a profile of int2:oscar and back.

#include <CLI/CLI.hpp>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <memory>
#include <tuple>

#include "oscar/rotation_file.h"
#include "oscar/version.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/model_cache.h"
#include "src/engine/runtime/engine.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"

namespace oscar::tools {
namespace {

struct RotationsArguments {
  engine::EngineOptions engine;
  std::string keys, values, profile;
  float clip_k = 0.96f, clip_v = 0.92f;
};

Status Import(const RotationsArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const RotationFile keys, RotationFile::Load(arguments.keys));
  OSCAR_ASSIGN_OR_RETURN(const RotationFile values, RotationFile::Load(arguments.values));
  for (const auto& [file, path, other] : {std::tuple{&keys, &arguments.keys, "sst"}, std::tuple{&values, &arguments.values, "qqt"}}) {
    if (file->objective.starts_with(other)) {
      return {StatusCode::kInvalidArgument, *path + ": holds the rotations of the other side (" + file->objective + "); are --rotation-k and --rotation-v swapped?"};
    }
  }
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(arguments.engine));
  RotationImportOptions options{.shape = engine->model().config().kv, .clip_k = arguments.clip_k, .clip_v = arguments.clip_v, .provenance = {}};
  options.provenance.model_name = engine->identity().name;
  options.provenance.model_digest = engine->identity().fingerprint;
  options.provenance.model_identity = engine->identity().identity;
  options.provenance.oscar_version = kVersion;
  options.provenance.text_name = "rotation files " + arguments.keys + ", " + arguments.values;
  options.provenance.created_utc = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  std::string warning;
  OSCAR_ASSIGN_OR_RETURN(const CodecProfile profile, ImportRotations(keys, values, options, &warning));
  if (!warning.empty()) Warn("rotations import", warning);
  const std::filesystem::path path = arguments.profile.empty() ? engine::ModelCache::ProfilePath(engine->model_path(), profile.method())
                                                               : std::filesystem::path(arguments.profile);
  const std::filesystem::path inputs[] = {engine->model_path(), arguments.keys, arguments.values};
  OSCAR_TRY(CheckOutputFile("-o", path, inputs));
  OSCAR_TRY(profile.Save(path));
  fmt::print("profile: {}\n", path.string());
  return {};
}

Status Export(const RotationsArguments& arguments) {
  OSCAR_ASSIGN_OR_RETURN(const CodecProfile profile, CodecProfile::Load(arguments.profile));
  auto pair = ExportRotations(profile);
  if (!pair.ok()) return pair.status().WithContext(arguments.profile);
  const std::filesystem::path inputs[] = {arguments.profile};
  OSCAR_TRY(CheckOutputFile("--rotation-k", arguments.keys, inputs));
  OSCAR_TRY(CheckOutputFile("--rotation-v", arguments.values, inputs));
  if (std::filesystem::weakly_canonical(arguments.keys) == std::filesystem::weakly_canonical(arguments.values)) {
    return {StatusCode::kInvalidArgument, "--rotation-k and --rotation-v: the same file"};
  }
  OSCAR_TRY(pair->first.Save(arguments.keys));
  OSCAR_TRY(pair->second.Save(arguments.values));
  fmt::print("K rotations: {}\nV rotations: {}\n", arguments.keys, arguments.values);
  return {};
}

void AddPairOptions(CLI::App& command, RotationsArguments& arguments) {
  command.add_option("--rotation-k", arguments.keys, "Rotation file of the keys (.pt)")->required()->type_name("FILE");
  command.add_option("--rotation-v", arguments.values, "Rotation file of the values (.pt)")->required()->type_name("FILE");
}

}  // namespace

void AddRotationsCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("rotations", "Released rotation files (.pt) to a profile of int2:oscar and back");
  command->require_subcommand(1);
  auto arguments = std::make_shared<RotationsArguments>();
  CLI::App* import = command->add_subcommand("import", "Make a profile from a pair of rotation files");
  AddModelOptions(*import, arguments->engine);
  AddPairOptions(*import, *arguments);
  import->add_option("-o,--output", arguments->profile, "Profile file (default: beside the model)")->type_name("FILE");
  import->add_option("--clip-k", arguments->clip_k, "Rank clip ratio of keys; 0: none")->capture_default_str()->type_name("R");
  import->add_option("--clip-v", arguments->clip_v, "Rank clip ratio of values; 0: none")->capture_default_str()->type_name("R");
  import->callback([arguments, &exit_code] {
    const Status status = Import(*arguments);
    exit_code = status.ok() ? 0 : Fail("rotations import", status);
  });
  CLI::App* write = command->add_subcommand("export", "Write the pair of rotation files of a profile");
  write->add_option("--profile", arguments->profile, "Profile of int2:oscar")->required()->type_name("FILE");
  AddPairOptions(*write, *arguments);
  write->callback([arguments, &exit_code] {
    const Status status = Export(*arguments);
    exit_code = status.ok() ? 0 : Fail("rotations export", status);
  });
}

}  // namespace oscar::tools
