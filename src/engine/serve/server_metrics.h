// The metrics of a server by name (serving.md 12), and its gauges in the shapes that routers read (/v1/loads, /v1/cache).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "src/engine/serve/kv_event_publisher.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

// Answers by route, method and status. Thread-safe. Routes are those of the program: nothing of a request becomes a label.
class HttpCounts {
 public:
  void Count(std::string_view route, std::string_view method, int status);
  using Key = std::tuple<std::string, std::string, int>;
  std::map<Key, uint64_t> counts() const;

 private:
  mutable std::mutex mutex_;
  std::map<Key, uint64_t> counts_;
};

// Under which other names numbers appear too: those that routers and dashboards of other engines read.
enum class MetricsAliases : uint8_t { kNone, kVllm, kSglang, kBoth };
// "none", "vllm", "sglang", "both".
std::optional<MetricsAliases> AliasesNamed(std::string_view name);

struct ServerMetrics {
  std::string model_name;
  const Scheduler& scheduler;
  const HttpCounts& http;
  int connections = 0;
  bool ready = true;
  uint64_t auth_failures = 0, refused_by_key = 0;
  uint64_t bad_calls = 0;           // answers with text that begins as a tool call and is none
  uint64_t log_lines_dropped = 0;
  const KvEventPublisher* kv_events = nullptr;  // null: there are none
};
std::string MetricsBody(const ServerMetrics& metrics, MetricsAliases aliases);

// Pages of running sequences over all pages, of the kind that is scarcer: 0 to 1.
double KvUsageRatio(const SchedulerSnapshot& snapshot);
// JSON of GET /v1/loads (serving.md 15) and GET /v1/cache.
std::string LoadsBody(const Scheduler& scheduler);
std::string CacheBody(const Scheduler& scheduler);

}  // namespace oscar::engine
