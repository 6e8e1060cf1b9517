#include "src/engine/serve/waiting_queue.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>

namespace oscar::engine {

uint64_t WaitingQueue::served(int tenant) const {
  const auto found = served_.find(tenant);
  return found == served_.end() ? 0 : found->second;
}

bool WaitingQueue::IsActive(int tenant) const {
  const auto running = running_.find(tenant);
  return (running != running_.end() && running->second > 0) ||
         std::ranges::any_of(waiting_, [tenant](const WaitingKey& key) { return key.tenant == tenant; });
}

void WaitingQueue::Push(const WaitingKey& key) {
  if (!IsActive(key.tenant)) {
    // Rest earns no credit: who comes back starts where the least served of the others is.
    std::optional<uint64_t> least;
    for (const auto& [tenant, served] : served_) {
      if (tenant != key.tenant && IsActive(tenant)) least = std::min(least.value_or(served), served);
    }
    if (least) served_[key.tenant] = std::max(served_[key.tenant], *least);
  }
  served_.try_emplace(key.tenant, 0);
  waiting_.push_back(key);
}

void WaitingQueue::Remove(uint64_t id) {
  std::erase_if(waiting_, [id](const WaitingKey& key) { return key.id == id; });
}

std::vector<WaitingKey> WaitingQueue::Order() const {
  std::vector<WaitingKey> order = waiting_;
  std::ranges::stable_sort(order, std::less<>(), [this](const WaitingKey& key) { return std::tuple(served(key.tenant), key.priority, key.id); });
  return order;
}

}  // namespace oscar::engine
