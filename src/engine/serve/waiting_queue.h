// WaitingQueue: who is next (serving.md 13). Tenants share by tokens: the one that has had the fewest is served first; inside a
// tenant the lower priority number, then arrival. Plain data, single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace oscar::engine {

struct WaitingKey {
  uint64_t id = 0;     // in order of arrival
  int tenant = 0;
  int priority = 0;    // lower first
};

class WaitingQueue {
 public:
  void Push(const WaitingKey& key);
  // Does nothing when it does not wait.
  void Remove(uint64_t id);
  bool empty() const { return waiting_.empty(); }
  // All that wait, in the order in which they would be served if none of them cost anything.
  std::vector<WaitingKey> Order() const;

  // Work that was done for a tenant: prompt tokens that were computed, twice the tokens of answers.
  void Charge(int tenant, uint64_t tokens) { served_[tenant] += tokens; }
  uint64_t served(int tenant) const;
  // A request of the tenant begins to run (+1) or ends (-1): a tenant is active while any of its requests waits or runs.
  void AddRunning(int tenant, int difference) { running_[tenant] += difference; }

 private:
  bool IsActive(int tenant) const;

  std::vector<WaitingKey> waiting_;
  std::map<int, uint64_t> served_;
  std::map<int, int> running_;  // requests
};

}  // namespace oscar::engine
