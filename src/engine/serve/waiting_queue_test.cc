#include "src/engine/serve/waiting_queue.h"

#include <gtest/gtest.h>

#include <map>

namespace oscar::engine {
namespace {

std::vector<uint64_t> Ids(const WaitingQueue& queue) {
  std::vector<uint64_t> ids;
  for (const WaitingKey& key : queue.Order()) ids.push_back(key.id);
  return ids;
}

TEST(WaitingQueue, OneTenantIsServedByPriorityThenArrival) {
  WaitingQueue queue;
  queue.Push({1, 0, 0});
  queue.Push({2, 0, 5});
  queue.Push({3, 0, -1});
  queue.Push({4, 0, 0});
  EXPECT_EQ(Ids(queue), (std::vector<uint64_t>{3, 1, 4, 2}));
  queue.Remove(1);
  queue.Remove(99);
  EXPECT_EQ(Ids(queue), (std::vector<uint64_t>{3, 4, 2}));
}

TEST(WaitingQueue, TheTenantThatHadLeastIsNext) {
  WaitingQueue queue;
  queue.Push({1, 0, 0});
  queue.Push({2, 1, 0});
  queue.Charge(0, 100);
  EXPECT_EQ(Ids(queue), (std::vector<uint64_t>{2, 1}));
  queue.Charge(1, 101);
  EXPECT_EQ(Ids(queue), (std::vector<uint64_t>{1, 2}));
}

TEST(WaitingQueue, ATenantThatRestedDoesNotSaveUp) {
  WaitingQueue queue;
  queue.Push({1, 0, 0});
  queue.Charge(0, 1000);
  queue.Push({2, 1, 0});  // new: starts at 1000 and not at 0
  EXPECT_EQ(queue.served(1), 1000u);
  queue.Charge(1, 5);
  EXPECT_EQ(Ids(queue), (std::vector<uint64_t>{1, 2}));
}

TEST(WaitingQueue, TwoBackloggedTenantsGetEqualTokensWhateverTheirRates) {
  WaitingQueue queue;
  uint64_t next_id = 1;
  std::map<int, uint64_t> served;
  const auto push = [&](int tenant) { queue.Push({next_id++, tenant, 0}); };
  for (int i = 0; i < 10; ++i) push(0);
  for (int i = 0; i < 2; ++i) push(1);  // one more always waits
  for (int turn = 0; turn < 2000; ++turn) {
    const WaitingKey next = queue.Order().front();
    queue.Remove(next.id);
    const uint64_t tokens = next.tenant == 0 ? 300 : 40;
    queue.Charge(next.tenant, tokens);
    served[next.tenant] += tokens;
    push(next.tenant);
    if (turn % 10 == 0 && turn < 500) push(0);
  }
  EXPECT_NEAR(static_cast<double>(served[0]) / static_cast<double>(served[1]), 1.0, 0.1);
}

}  // namespace
}  // namespace oscar::engine
