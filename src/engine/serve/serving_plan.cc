#include "src/engine/serve/serving_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "oscar/kernels.h"

namespace oscar::engine {
namespace {

constexpr int kPlaces = 8;
constexpr int64_t kLeastContext = 1024;
constexpr int kPagesOfWindow = 6;  // of one resume point at most, with the default windows

// A number from a file of the system; `other` when there is none.
uint64_t ReadNumber(const char* path, uint64_t other) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : other;
}

struct PageBytes {
  int64_t bf16 = 0, encoded = 0;
};

PageBytes BytesOfPages(const ServingNeeds& needs) {
  const int64_t rows = int64_t{needs.shape.num_layers} * needs.shape.num_kv_heads;
  const int64_t bf16 = rows * needs.shape.head_dim * kPageTokens * 4;
  return {bf16, needs.method.is_exact() ? bf16 : rows * static_cast<int64_t>(needs.method.codec->page_bytes(needs.shape.head_dim))};
}

}  // namespace

uint64_t AvailableMemory() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    uint64_t kilobytes = 0;
    if (name == "MemAvailable:" && file >> kilobytes) available = kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const uint64_t limit = ReadNumber("/sys/fs/cgroup/memory.max", std::numeric_limits<uint64_t>::max());
  const uint64_t used = ReadNumber("/sys/fs/cgroup/memory.current", 0);
  return std::min(available, limit > used ? limit - used : 0);
}

Result<ServingPlan> PlanServing(const ServingNeeds& needs) {
  const PageBytes bytes = BytesOfPages(needs);
  const bool exact = needs.method.is_exact();
  ServingPlan plan;
  plan.max_running = needs.max_running > 0 ? needs.max_running : kPlaces;
  // Windows and steps of the places (CapacityPlan counts the same), then windows of prefixes.
  const int64_t pages_of_place = exact ? 1 : needs.sink / kPageTokens + (needs.recent + kPageTokens - 1 + needs.step_tokens + kPageTokens - 1) / kPageTokens;
  const auto memory = static_cast<int64_t>(std::min<uint64_t>(needs.memory_bytes, std::numeric_limits<int64_t>::max() / 2));
  const auto room_beside = [&](int places) { return memory - places * pages_of_place * bytes.bf16; };
  // Small memory: fewer places, rather than none at all.
  while (needs.max_running == 0 && plan.max_running > 1 && room_beside(plan.max_running) < memory / 2) --plan.max_running;
  int64_t room = room_beside(plan.max_running);
  if (needs.prefix_cache && !exact) {
    plan.prefix_pages = static_cast<int>(std::clamp<int64_t>(memory / 5 / bytes.bf16, 0, int64_t{4} * kPagesOfWindow * plan.max_running));
    room -= plan.prefix_pages * bytes.bf16;
  }
  const int64_t tokens = std::max<int64_t>(0, room) / bytes.encoded * kPageTokens + (exact ? 0 : needs.sink + needs.recent);
  const int64_t wanted = needs.context > 0 ? needs.context : std::min<int64_t>(needs.trained_context, std::max(tokens / 2, kLeastContext));
  plan.context = static_cast<int>(needs.context > 0 ? wanted : std::max<int64_t>(wanted / kPageTokens * kPageTokens, std::min<int64_t>(wanted, kLeastContext)));
  plan.kv_tokens = needs.kv_tokens > 0 ? needs.kv_tokens : std::min(tokens, 2 * int64_t{plan.context} * plan.max_running);
  if (needs.kv_tokens == 0 && plan.kv_tokens < plan.context) {
    return {StatusCode::kResourceExhausted, "a context of " + std::to_string(plan.context) + " tokens and " + std::to_string(plan.max_running) +
                                                " requests at once do not fit the " + std::to_string(needs.memory_bytes >> 20) +
                                                " MiB for the cache; give less with --ctx or --max-running, or more with --kv-bytes"};
  }
  return plan;
}

}  // namespace oscar::engine
