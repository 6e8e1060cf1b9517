// `oscar pull`: brings a model file into the model cache.

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>

#include "src/base/status_macros.h"
#include "src/engine/hub/hub_client.h"
#include "src/engine/hub/model_cache.h"
#include "src/engine/report/progress.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct PullArguments {
  engine::PullRequest request;
  std::string token_file;
  bool quiet = false;
};

Status Pull(PullArguments arguments) {
  engine::PullRequest& request = arguments.request;
  if (request.directory.empty()) request.directory = engine::ModelCache().root();
  if (request.directory.empty()) {
    return {StatusCode::kInvalidArgument, "no home folder for the model cache: give --dir"};
  }
  if (!arguments.token_file.empty()) {
    OSCAR_ASSIGN_OR_RETURN(request.token, engine::ReadTokenFile(arguments.token_file));
  }
  engine::ProgressOptions options;
  options.label = "pull";
  options.style = engine::ProgressStyleOf(stderr, arguments.quiet);
  engine::Progress progress(std::move(options));
  request.progress = [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); };
  CatchInterrupts();
  request.cancelled = &Interrupted();
  OSCAR_ASSIGN_OR_RETURN(const std::filesystem::path path, engine::Pull(request));
  progress.Finish();
  fmt::print("{}\n", path.string());
  return {};
}

}  // namespace

void AddPullCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<PullArguments>();
  engine::PullRequest& request = arguments->request;
  CLI::App* command = app.add_subcommand("pull", "Bring a model into the model cache; an interrupted pull resumes");
  command->add_option("source", request.source, "hf:owner/repo/path/file.gguf[@revision], or an http(s) URL")
      ->required()
      ->type_name("SOURCE");
  command->add_option("--sha256", request.sha256, "Expected hash (default: the server's, if it gives one)")->type_name("HEX");
  command->add_option("--dir", request.directory, "Folder (default: the model cache)")->type_name("FOLDER");
  command->add_option("--endpoint", request.hub_endpoint, "Base URL for hf: sources")->capture_default_str()->type_name("URL");
  command->add_option("--token-file", arguments->token_file, "File with an access token")->type_name("FILE");
  command->add_option("--ca-file", request.ca_file, "Certificates to trust instead of the system's")->type_name("FILE");
  command->add_flag("--overwrite", request.overwrite, "Replace a file of this name that has other content");
  command->add_flag("-q,--quiet", arguments->quiet, "No progress");
  command->callback([arguments, &exit_code] {
    const Status status = Pull(*arguments);
    exit_code = status.ok() ? 0 : Fail("pull", status);
  });
}

}  // namespace oscar::tools
