// Server: the routes of the OpenAI API over a scheduler (serving.md 3).
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/runtime/engine.h"
#include "src/engine/serve/http_server.h"
#include "src/engine/serve/request_log.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

struct ServerOptions {
  HttpOptions http;
  SchedulerOptions scheduler;
  std::string model_id;                 // name under which the model is served; empty: its file's stem
  std::filesystem::path api_key_file;   // one key per line (auth.h); empty: none
  std::string api_key;                  // one more key, an admin's; empty: none
  std::vector<std::string> cors_origins, allowed_hosts;  // origins of other sites' pages that may ask; names besides loopback's
  bool strict_fields = false;           // refuse request members that are not known
  bool insecure_open = false;           // allow an address that others reach without keys
  bool share_prefixes = false;          // among tenants
  bool public_metrics = false;          // /metrics without a key
  std::filesystem::path kv_folder;      // of KV files; empty: none are kept
  double watchdog_seconds = 60;         // without a step while there is work: stalled
  LogFormat log = LogFormat::kText;     // of requests, to standard error
};

class Server {
 public:
  // kInvalidArgument naming the option; kFailedPrecondition for an address that others reach without keys; kNotFound or kIoError
  // for the key file; the errors of the scheduler and of binding.
  static Result<std::unique_ptr<Server>> Start(Engine& engine, const KvSetup& setup, const ServerOptions& options);
  virtual ~Server() = default;
  virtual uint16_t port() const = 0;
  virtual const std::string& model_id() const = 0;
  virtual SchedulerSnapshot snapshot() const = 0;
  // Refuses new requests, lets what runs finish, and returns when all is done or the time is over.
  virtual void Drain(std::chrono::seconds most) = 0;
};

}  // namespace oscar::engine
