// `oscar serve`: the OpenAI API over HTTP.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <fmt/format.h>
#include <memory>
#include <thread>

#include "src/base/status_macros.h"
#include "src/engine/report/quantity.h"
#include "src/engine/serve/server.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct ServeArguments {
  engine::EngineOptions engine;
  engine::ServerOptions server;
  int drain_seconds = 30;
};

// Bytes per cached token in the long run, and how that compares with BF16.
void PrintStart(engine::Engine& engine, const engine::Server& server, const ServeArguments& arguments) {
  const engine::SchedulerSnapshot snapshot = server.snapshot();
  const KvShape& shape = engine.model().config().kv;
  const double bf16_bytes = 4.0 * shape.num_layers * shape.num_kv_heads * shape.head_dim * static_cast<double>(arguments.server.scheduler.kv_tokens);
  fmt::print(stderr,
             "oscar serve: {} as \"{}\", {} threads\n"
             "  cache     {}: {} tokens in {} (BF16 rows alone: {})\n"
             "  context   {} tokens, {} requests at once\n"
             "  address   http://{}:{}/v1, chat page http://{}:{}/\n",
             engine.identity().name, server.model_id(), engine.threads(), engine.kv()->method.name(), arguments.server.scheduler.kv_tokens,
             engine::FormatBytes(static_cast<double>(snapshot.kv.allocated_bytes())), engine::FormatBytes(bf16_bytes), engine.context(),
             arguments.server.scheduler.max_running, arguments.server.http.address, server.port(), arguments.server.http.address, server.port());
}

Status Serve(ServeArguments& arguments) {
  if (arguments.drain_seconds < 0) return {StatusCode::kInvalidArgument, fmt::format("--shutdown-timeout {}: must not be negative", arguments.drain_seconds)};
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::Open(arguments.engine));
  Warn("serve", engine->kv()->warning);
  if (!arguments.server.api_key.empty()) Warn("serve", "--api-key: others on this machine can read the key in the list of processes; --api-key-file hides it");
  engine::SchedulerOptions& scheduler = arguments.server.scheduler;
  if (scheduler.kv_tokens == 0) scheduler.kv_tokens = int64_t{engine->context()} * scheduler.max_running;
  CatchInterrupts();
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Server> server, engine::Server::Start(*engine, *engine->kv(), arguments.server));
  // The scheduler publishes its first state within a second of work; the pools are known at once.
  PrintStart(*engine, *server, arguments);
  while (!Interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  fmt::print(stderr, "oscar serve: finishing what runs (again Ctrl-C: at once)\n");
  server->Drain(std::chrono::seconds(arguments.drain_seconds));
  return {};
}

}  // namespace

void AddServeCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP with the OpenAI API");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  AddContextOption(*command, arguments->engine);
  AddKvOptions(*command, arguments->engine);
  AddWindowOptions(*command, arguments->engine);
  engine::ServerOptions& server = arguments->server;
  command->add_option("--host", server.http.address, "Address to listen on")->capture_default_str()->type_name("ADDRESS");
  command->add_option("--port", server.http.port, "Port; 0: any free one")->capture_default_str()->type_name("N");
  command->add_option("--model-id", server.model_id, "Name of the model in requests (default: its file's name)")->type_name("NAME");
  command->add_option("--api-key-file", server.api_key_file, "Keys that are let in, one per line (default: everyone on this machine)")->type_name("FILE");
  command->add_option("--api-key", server.api_key, "One key; others on this machine can read it in the list of processes")->type_name("KEY");
  command->add_option("--cors-origin", server.cors_origins, "Origin of pages of another site that may ask; repeatable")->type_name("URL");
  command->add_option("--allowed-host", server.allowed_hosts, "Name besides loopback's in the Host field; repeatable")->type_name("NAME");
  command->add_flag("--strict-fields", server.strict_fields, "Refuse request members that are not known");
  command->add_flag("--insecure-open", server.insecure_open, "Serve others without keys");
  command->add_option("--max-running", server.scheduler.max_running, "Requests that run at once")->capture_default_str()->type_name("N");
  command->add_option("--kv-tokens", server.scheduler.kv_tokens, "Tokens in the cache, all requests together (default: --ctx times --max-running)")
      ->type_name("N");
  command->add_option("--step-tokens", server.scheduler.step_tokens, "Tokens of a step, prompts and answers together")->capture_default_str()->type_name("N");
  command->add_option("--max-queued-requests", server.scheduler.max_queued, "Requests that wait; more are refused with 429")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--max-body-bytes", server.http.max_body_bytes, "Largest request body")->capture_default_str()->type_name("N");
  command->add_option("--max-connections", server.http.max_connections, "Open connections")->capture_default_str()->type_name("N");
  command->add_option("--shutdown-timeout", arguments->drain_seconds, "Seconds that running requests get after SIGTERM")->capture_default_str()->type_name("N");
  command->callback([arguments, &exit_code] {
    const Status status = Serve(*arguments);
    exit_code = status.ok() ? 0 : Fail("serve", status);
  });
}

}  // namespace oscar::tools
