// Server: the routes of the OpenAI API over a scheduler (serving.md 3). It listens before its model is loaded, and says so.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/serve/http_server.h"
#include "src/engine/serve/key_limits.h"
#include "src/engine/serve/kv_event_publisher.h"
#include "src/engine/serve/request_log.h"
#include "src/engine/serve/scheduler.h"
#include "src/engine/serve/server_metrics.h"

namespace oscar::engine {

struct ServerOptions {
  HttpOptions http;
  std::string model_id;                 // name under which the model is served; empty: its file's stem
  std::filesystem::path api_key_file;   // one key per line (auth.h); empty: none
  std::string api_key;                  // one more key, an admin's; empty: none
  KeyLimitOptions key_limits;
  std::vector<std::string> cors_origins, allowed_hosts;  // origins of other sites' pages that may ask; names besides loopback's
  std::string tool_parser;              // the notation of tool calls (AnswerFormatNamed); empty: as the model's template has it
  bool strict_fields = false;           // refuse request members that are not known
  bool insecure_open = false;           // allow an address that others reach without keys
  bool share_prefixes = false;          // among tenants
  bool public_metrics = false;          // /metrics without a key
  MetricsAliases metrics_aliases = MetricsAliases::kVllm;
  std::filesystem::path kv_folder;      // of KV files; empty: none are kept
  KvEventOptions kv_events;
  double watchdog_seconds = 60;         // without a step while there is work: stalled
  LogFormat log = LogFormat::kText;     // of requests, to standard error
};

class Server {
 public:
  // Listens, and answers that the model is loading: health and the page are there, all else is 503 `loading`. kInvalidArgument naming the
  // option; kFailedPrecondition for an address that others reach without keys; kNotFound or kIoError for the key file; kIoError of binding.
  static Result<std::unique_ptr<Server>> Listen(const ServerOptions& options);
  virtual ~Server() = default;
  // How far loading is, 0 to 1, for /health.
  virtual void SetProgress(double progress) = 0;
  // Takes requests from here on. Once; the engine must outlive the server. Errors of the scheduler.
  virtual Status Serve(Engine& engine, const KvSetup& setup, const SchedulerOptions& scheduler) = 0;
  virtual uint16_t port() const = 0;
  // A line to standard error, without waiting for whoever reads it.
  virtual void Say(std::string line) = 0;
  // After Serve.
  virtual const std::string& model_id() const = 0;
  virtual SchedulerSnapshot snapshot() const = 0;
  // Refuses new requests, lets what runs finish, and returns when all is done or the time is over.
  virtual void Drain(std::chrono::seconds most) = 0;
};

}  // namespace oscar::engine
