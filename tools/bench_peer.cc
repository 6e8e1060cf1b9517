#include "tools/bench_peer.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>

#include "src/base/digest.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/model_cache.h"
#include "tools/peer_files.h"
#include "tools/report_steps.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLlamaCpp = "llama.cpp";

// What the code that is built for this processor depends on.
std::string ProcessorDigits() {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (line.starts_with("flags") || line.starts_with("Features")) flags = line;
  }
  base::Sha256 digest;
  digest.Update(flags);
  return base::HexFromDigest(digest.Finish()).substr(0, 8);
}

bool HasContent(const fs::path& path, std::string_view content) {
  std::ifstream file(path, std::ios::binary);
  return file && std::string(std::istreambuf_iterator<char>(file), {}) == content;
}

// The step server in the user's cache, built now unless it is there.
Result<std::string> FindOrBuildLlamaCpp() {
  const fs::path cache = engine::ModelCache().root().parent_path();
  if (cache.empty()) return Status(StatusCode::kFailedPrecondition, "--against llama.cpp: no home folder to build it in; set XDG_CACHE_HOME");
  const fs::path folder = cache / "peers" / (std::string("llama.cpp-") + ProcessorDigits());
  const fs::path program = folder / "step_server", source = folder / "step_server.cc", script = folder / "build_llamacpp";
  if (fs::exists(program) && HasContent(source, kStepServerSource)) return program.string();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Status(StatusCode::kIoError, "--against llama.cpp: " + folder.string() + ": " + error.message());
  fs::remove(program, error);  // built from another source
  std::ofstream(source, std::ios::binary) << kStepServerSource;
  std::ofstream(script, std::ios::binary) << kLlamaCppBuildScript;
  if (!HasContent(source, kStepServerSource) || !HasContent(script, kLlamaCppBuildScript)) {
    return Status(StatusCode::kIoError, "--against llama.cpp: cannot write into " + folder.string());
  }
  fmt::print(stderr, "oscar bench: building llama.cpp once, for this processor, in {} (some minutes)\n", folder.string());
  OSCAR_ASSIGN_OR_RETURN(const int code, RunProcess({"bash", script.string(), folder.string()}, folder / "built.txt"));
  if (Interrupted() || code == 128 + 2) return Status(StatusCode::kCancelled, "interrupted; the same command goes on building");
  if (code == 0 && fs::exists(program)) return program.string();
  return Status(StatusCode::kFailedPrecondition, fmt::format("--against llama.cpp: could not be built in {} (exit code {}); the lines above say why", folder.string(), code));
}

}  // namespace

void AddPeerOptions(CLI::App& app, PeerOptions& options) {
  CLI::Option* const against =
      app.add_option("--against", options.against,
                     "Another engine in the same run: llama.cpp, which is built on first use in the cache folder, or a step server's program (a path)");
  against->check([](const std::string& program) { return std::string(program.empty() ? "the name of the program is empty" : ""); })
      ->type_name("llama.cpp|PROGRAM");
  app.add_option("--against-kv", options.kv, "KV types of the other engine")
      ->needs(against)
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TYPE,...");
}

Result<Peers> StartPeers(const PeerOptions& options, const engine::Engine& engine, engine::SpeedRequest& request) {
  Peers peers;
  if (options.against.empty()) return peers;
  if (engine.options().load_format == engine::LoadFormat::kDummy) {
    return Status(StatusCode::kInvalidArgument, "--against needs a model file, not --load-format dummy");
  }
  std::string program = options.against;
  if (program == kLlamaCpp) {
    OSCAR_ASSIGN_OR_RETURN(program, FindOrBuildLlamaCpp());
  }
  request.peers.resize(options.kv.size());
  const std::string context = std::to_string(engine::SpeedTokensNeeded(request));
  for (size_t i = 0; i < request.peers.size(); ++i) {
    const std::vector<std::string> command = {program, engine.model_path().string(), std::to_string(engine.threads()), context, options.kv[i]};
    OSCAR_ASSIGN_OR_RETURN(std::unique_ptr<engine::PeerProcess> peer, engine::PeerProcess::Start(command));
    request.peers[i] = peer.get();
    peers.push_back(std::move(peer));
  }
  return peers;
}

}  // namespace oscar::tools
