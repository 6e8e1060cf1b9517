// Routes for whoever runs the server (serving.md 3): forgetting prefixes, aborting requests, KV files.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "src/engine/serve/api_error.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

struct AdminContext {
  Scheduler& scheduler;
  std::filesystem::path kv_folder;  // empty: no KV files
  std::string model_fingerprint;    // part of the key of KV files
  std::function<int(const std::string& request_id)> abort;  // "": all; gives how many sequences were told to end
};

struct RouteAnswer {
  int status = 200;
  std::string body;                 // JSON
};

// Of a route of RouteKind::kAdmin. Waits for the scheduler between two steps: not for an HTTP thread.
RouteAnswer RunAdminRoute(std::string_view path, std::string_view method, std::string_view body, const AdminContext& context);

}  // namespace oscar::engine
