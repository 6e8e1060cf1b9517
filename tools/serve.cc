// `oscar serve`: the OpenAI API over HTTP.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unistd.h>

#include "oscar/version.h"
#include "src/base/status_macros.h"
#include "src/engine/hub/model_cache.h"
#include "src/engine/report/quantity.h"
#include "src/engine/runtime/calibration_run.h"
#include "src/engine/runtime/calibration_text.h"
#include "src/engine/serve/server.h"
#include "src/engine/serve/serving_plan.h"
#include "src/engine/text/chat/answer_format.h"
#include "tools/command_line.h"
#include "tools/subcommands.h"
#include "tools/terminal.h"

namespace oscar::tools {
namespace {

struct ServeArguments {
  engine::EngineOptions engine;
  engine::ServerOptions server;
  engine::SchedulerOptions scheduler;
  std::optional<int> max_running;
  std::optional<int64_t> kv_bytes;
  int drain_seconds = 30;
  bool no_prefix_cache = false, no_preempt = false;
};

// A calibrated method without its profile: it is made now, once, and kept beside the model.
Status FindOrMakeProfile(const ServeArguments& arguments, engine::Server& server) {
  const engine::EngineOptions& options = arguments.engine;
  if (!options.profile.empty() || !engine::IsCalibrated(options.kv) || options.load_format != engine::LoadFormat::kGguf) return {};
  OSCAR_ASSIGN_OR_RETURN(const std::filesystem::path model, engine::ModelCache().Resolve(options.model));
  const std::filesystem::path path = engine::ModelCache::ProfilePath(model, options.kv);
  if (std::filesystem::exists(path)) return {};
  const std::filesystem::path folder = path.parent_path().empty() ? "." : path.parent_path();
  if (access(folder.c_str(), W_OK) != 0) {
    return {StatusCode::kIoError, fmt::format("{} needs a calibrated profile and {} cannot be written to; make one with oscar calibrate -o FILE and give "
                                              "it with --profile, or serve with --kv int2:hadamard, which needs none", options.kv, folder.string())};
  }
  fmt::print(stderr, "oscar serve: no profile of {} for this model yet: calibrating, once, into {}\n", options.kv, path.filename().string());
  engine::EngineOptions plain = options;
  plain.device = engine::Device::kCpu;  // the same profile wherever it is served
  plain.deterministic = false;
  if (plain.weights == engine::WeightPrecision::kFp8) plain.weights = engine::WeightPrecision::kStored;
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine, engine::Engine::OpenModel(plain));
  engine::CalibrationRequest request;
  request.method = options.kv;
  request.text = {"built-in text of oscar " + std::string(kVersion), std::string(engine::CalibrationText())};
  request.window_tokens = std::min(request.window_tokens, engine->model().config().max_context);
  request.control = ProgressControl("calibrate", false);
  request.control.progress = [&server, shown = request.control.progress](int64_t done, int64_t total) {
    shown(done, total);
    if (total > 0) server.SetProgress(static_cast<double>(done) / static_cast<double>(total));
  };
  OSCAR_ASSIGN_OR_RETURN(const engine::CalibrationOutcome outcome, engine::Calibrate(*engine, request));
  if (Interrupted()) return {StatusCode::kCancelled, "interrupted"};
  return outcome.profile.Save(path);
}

// What was not given is chosen from the memory: half of what the weights leave is for the cache.
Status Plan(ServeArguments& arguments, engine::Engine& engine) {
  engine::SchedulerOptions& scheduler = arguments.scheduler;
  engine::ServingNeeds needs;
  needs.shape = engine.model().config().kv;
  needs.method = engine.kv()->method;
  needs.sink = arguments.engine.sink;
  needs.recent = arguments.engine.recent;
  needs.trained_context = engine.model().config().max_context;
  needs.step_tokens = scheduler.step_tokens;
  const uint64_t on_host = engine::AvailableMemory(), weights = engine.model().weight_bytes();
  const uint64_t left = engine.model().free_device_memory().value_or(on_host > weights ? on_host - weights : 0);
  needs.memory_bytes = arguments.kv_bytes ? static_cast<uint64_t>(*arguments.kv_bytes) : left / 2;
  needs.context = arguments.engine.context;
  needs.max_running = std::max(0, arguments.max_running.value_or(0));
  needs.kv_tokens = std::max<int64_t>(0, scheduler.kv_tokens);
  needs.prefix_cache = scheduler.prefix_cache;
  OSCAR_ASSIGN_OR_RETURN(const engine::ServingPlan plan, engine::PlanServing(needs));
  if (arguments.engine.context == 0) OSCAR_TRY(engine.UseContext(plan.context));
  scheduler.max_running = arguments.max_running.value_or(plan.max_running);
  if (scheduler.kv_tokens == 0) scheduler.kv_tokens = plan.kv_tokens;
  scheduler.prefix_pages = plan.prefix_pages;
  scheduler.max_queued_tokens = scheduler.max_queued_tokens > 0 ? scheduler.max_queued_tokens : int64_t{64} * scheduler.step_tokens;
  return {};
}

// One screen: model, method, what fits, and where to ask.
void PrintStart(engine::Engine& engine, const engine::Server& server, const ServeArguments& arguments) {
  const engine::SchedulerSnapshot snapshot = server.snapshot();
  const engine::SchedulerOptions& scheduler = arguments.scheduler;
  const KvShape& shape = engine.model().config().kv;
  const double bf16_token_bytes = 4.0 * shape.num_layers * shape.num_kv_heads * shape.head_dim;
  const double allocated = static_cast<double>(snapshot.kv.allocated_bytes());
  const engine::KvWindows windows = engine.WindowsOf(*engine.kv());
  const BitsLedger ledger = LedgerAt(engine.kv()->method, shape.head_dim, engine.context(), windows.sink, windows.recent);
  fmt::print(stderr,
             "oscar {}: {} as \"{}\", {} threads\n"
             "  method    {}: {:.2f} bits per element at {} tokens, first {} and newest {} tokens in BF16\n"
             "  capacity  {} tokens in {} ({} in the same memory as BF16)\n"
             "  serving   {} requests at once, {} tokens each, {} more may wait; prefix cache {}\n"
             "  address   http://{}:{}/v1, chat page http://{}:{}/\n",
             kVersion, engine.identity().name, server.model_id(), engine.threads(), engine.kv()->method.name(), ledger.at_length, engine.context(),
             windows.sink, windows.recent, engine::FormatCount(scheduler.kv_tokens), engine::FormatBytes(allocated),
             engine::FormatCount(static_cast<int64_t>(allocated / bf16_token_bytes)), scheduler.max_running, engine::FormatCount(engine.context()),
             scheduler.max_queued, scheduler.prefix_cache ? "on" : "off", arguments.server.http.address, server.port(), arguments.server.http.address, server.port());
}

Status Serve(ServeArguments& arguments) {
  if (arguments.drain_seconds < 0) return {StatusCode::kInvalidArgument, fmt::format("--shutdown-timeout {}: must not be negative", arguments.drain_seconds)};
  if (!arguments.server.api_key.empty()) Warn("serve", "--api-key: others on this machine can read the key in the list of processes; --api-key-file hides it");
  if (arguments.kv_bytes.value_or(1) < 1) return {StatusCode::kInvalidArgument, fmt::format("--kv-bytes {}: must be positive", *arguments.kv_bytes)};
  engine::SchedulerOptions& scheduler = arguments.scheduler;
  scheduler.prefix_cache = !arguments.no_prefix_cache;
  scheduler.preempt = !arguments.no_preempt;
  CatchInterrupts();
  std::unique_ptr<engine::Engine> engine;  // outlives the server
  OSCAR_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Server> server, engine::Server::Listen(arguments.server));
  fmt::print(stderr, "oscar serve: loading; http://{}:{}/health says when requests are taken\n", arguments.server.http.address, server->port());
  OSCAR_TRY(FindOrMakeProfile(arguments, *server));
  OSCAR_ASSIGN_OR_RETURN(engine, engine::Engine::Open(arguments.engine));
  Warn("serve", engine->kv()->warning);
  OSCAR_TRY(Plan(arguments, *engine));
  OSCAR_TRY(server->Serve(*engine, *engine->kv(), arguments.scheduler));
  if (!arguments.server.tool_parser.empty()) {
    OSCAR_ASSIGN_OR_RETURN(const std::string chat_template, engine->model().metadata().StringOr("tokenizer.chat_template", ""));
    Warn("serve", engine::ToolParserWarning(arguments.server.tool_parser, chat_template));
  }
  PrintStart(*engine, *server, arguments);
  while (!Interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server->Say("oscar serve: finishing what runs (again Ctrl-C: at once)\n");
  server->Drain(std::chrono::seconds(arguments.drain_seconds));
  return {};
}

void AddSchedulerOptions(CLI::App& command, ServeArguments& arguments) {
  engine::SchedulerOptions& scheduler = arguments.scheduler;
  const auto add = [&](const char* name, auto& value, const char* text, const char* type = "N") { command.add_option(name, value, text)->type_name(type); };
  const auto add_default = [&](const char* name, auto& value, const char* text, const char* type = "N") {
    command.add_option(name, value, text)->capture_default_str()->type_name(type);
  };
  add("--max-running", arguments.max_running, "Requests that run at once (default: 8, fewer in little memory)");
  add("--kv-tokens", scheduler.kv_tokens, "Tokens in the cache, all requests together (default: what --kv-bytes holds)");
  add("--kv-bytes", arguments.kv_bytes, "Memory for the cache (default: half of what the weights leave)");
  add_default("--step-tokens", scheduler.step_tokens, "Tokens of a step, prompts and answers together");
  add_default("--max-itl-ms", scheduler.max_gap_ms, "Cut parts of prompts so that steps stay below it; 0: no bound", "MS");
  add_default("--max-queued-requests", scheduler.max_queued, "Requests that wait; more are refused with 429");
  add("--max-queued-tokens", scheduler.max_queued_tokens, "Tokens of their prompts (default: 64 times --step-tokens)");
  add_default("--queue-timeout", scheduler.queue_timeout, "Seconds that a request waits at most, then 503; 0: any time", "S");
  add_default("--admit-reserve", scheduler.admit_reserve, "Tokens of an answer that must fit before a request begins");
  command.add_flag("--no-preempt", arguments.no_preempt, "Whole answers must fit before a request begins; none ever leaves the cache");
  add_default("--swap-bytes", scheduler.swap_bytes, "Memory for requests that leave the cache for a while; beyond it they are computed again");
  command.add_flag("--no-prefix-cache", arguments.no_prefix_cache, "Compute every prompt whole");
  add_default("--resume-stride", scheduler.resume_stride, "Pages of 64 tokens between spare resume points of a long prompt");
}

// What it says of itself.
void AddReportOptions(CLI::App& command, engine::ServerOptions& server) {
  const std::map<std::string, engine::LogFormat> formats = {{"none", engine::LogFormat::kNone}, {"text", engine::LogFormat::kText}, {"json", engine::LogFormat::kJson}};
  command.add_option_function<std::string>("--log", [formats, &server](const std::string& name) { server.log = formats.at(name); },
                                           "A line per request on standard error: text, json or none (default: text)")
      ->check([formats](const std::string& name) { return formats.contains(name) ? std::string() : "'" + name + "' is not text, json or none"; })
      ->type_name("FORMAT");
  command.add_option_function<std::string>("--metrics-compat", [&server](const std::string& name) { server.metrics_aliases = *engine::AliasesNamed(name); },
                                           "Names of other engines in /metrics: vllm, sglang, both or none (default: vllm)")
      ->check([](const std::string& name) { return engine::AliasesNamed(name) ? std::string() : "'" + name + "' is not vllm, sglang, both or none"; })
      ->type_name("NAMES");
}

}  // namespace

void AddServeCommand(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP with the OpenAI API");
  AddModelOptions(*command, arguments->engine);
  AddDeviceOption(*command, arguments->engine);
  command->add_option("-c,--ctx", arguments->engine.context, "Context in tokens (default: what the model was trained for, less in little memory)")->type_name("N");
  AddKvOptions(*command, arguments->engine);
  AddWindowOptions(*command, arguments->engine);
  command->add_flag("--deterministic", arguments->engine.deterministic,
                    "An answer's bits do not depend on other requests, on parts of prompts or on the prefix cache; slower");
  engine::ServerOptions& server = arguments->server;
  command->add_option("--host", server.http.address, "Address to listen on")->capture_default_str()->type_name("ADDRESS");
  command->add_option("--port", server.http.port, "Port; 0: any free one")->capture_default_str()->type_name("N");
  command->add_option("--model-id", server.model_id, "Name of the model in requests (default: its file's name)")->type_name("NAME");
  command->add_option("--api-key-file", server.api_key_file, "Keys that are let in, one per line (default: everyone on this machine)")->type_name("FILE");
  command->add_option("--api-key", server.api_key, "One key; others on this machine can read it in the list of processes")->type_name("KEY");
  command->add_option("--max-requests-per-key", server.key_limits.max_requests, "Requests of a key at once; more are refused with 429; 0: any number")
      ->capture_default_str()->type_name("N");
  command->add_option("--tokens-per-minute-per-key", server.key_limits.tokens_per_minute, "Tokens of a key, prompts and answers; 0: any number")
      ->capture_default_str()->type_name("N");
  command->add_option("--cors-origin", server.cors_origins, "Origin of pages of another site that may ask; repeatable")->type_name("URL");
  command->add_option("--allowed-host", server.allowed_hosts, "Name besides loopback's in the Host field; repeatable")->type_name("NAME");
  command->add_option("--tool-parser", server.tool_parser, "Notation of tool calls: " + engine::ToolParserNames() + " (default: read off the model's template)")
      ->type_name("NAME");
  command->add_flag("--strict-fields", server.strict_fields, "Refuse request members that are not known");
  command->add_flag("--insecure-open", server.insecure_open, "Serve others without keys");
  command->add_flag("--share-prefix-cache", server.share_prefixes, "Tenants find each other's prefixes");
  command->add_flag("--public-metrics", server.public_metrics, "GET /metrics without a key");
  AddSchedulerOptions(*command, *arguments);
  command->add_option("--kv-dir", server.kv_folder, "Folder of KV files; without it there are none")->type_name("FOLDER");
  command->add_option("--kv-events", server.kv_events.endpoint, "Tell routers which prefixes are here, by a ZeroMQ PUB socket (default: none)")->type_name("ENDPOINT");
  command->add_option("--kv-events-replay", server.kv_events.replay_endpoint, "ROUTER socket that gives the last events again (default: none)")->type_name("ENDPOINT");
  command->add_option("--kv-events-topic", server.kv_events.topic, "Topic of the events (default: kv@HOST@MODEL)")->type_name("TEXT");
  command->add_option("--watchdog", server.watchdog_seconds, "Seconds without a step after which /health says stalled")->capture_default_str()->type_name("S");
  AddReportOptions(*command, server);
  command->add_option("--max-body-bytes", server.http.max_body_bytes, "Largest request body")->capture_default_str()->type_name("N");
  command->add_option("--max-connections", server.http.max_connections, "Open connections")->capture_default_str()->type_name("N");
  command->add_option("--max-connections-per-ip", server.http.max_connections_per_ip, "Open connections of one address; 0: any number")
      ->capture_default_str()->type_name("N");
  command->add_option("--shutdown-timeout", arguments->drain_seconds, "Seconds that running requests get after SIGTERM")->capture_default_str()->type_name("N");
  command->callback([arguments, &exit_code] {
    const Status status = Serve(*arguments);
    exit_code = status.ok() ? 0 : Fail("serve", status);
  });
}

}  // namespace oscar::tools
