#include "src/base/thread_pool.h"

#include <atomic>

#include "gtest/gtest.h"

namespace oscar::base {
namespace {

TEST(ThreadPool, EveryThreadRunsEveryTaskOnce) {
  for (int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> hits(num_threads);
      RunOn(pool, [&](int thread, int total) {
        EXPECT_EQ(total, num_threads);
        ++hits[thread];
      });
      for (const auto& hit : hits) EXPECT_EQ(hit, 1);
    }
  }
}

}  // namespace
}  // namespace oscar::base
