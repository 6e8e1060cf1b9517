#include "src/kv/pool/page_pool.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace oscar::pool {
namespace {

PageRef TakeOrDie(PagePool& pool) {
  Result<PageRef> page = pool.Take();
  EXPECT_TRUE(page.ok());
  return std::move(page).value();
}

TEST(PagePool, HandsOutEveryPageOnceLowestFirst) {
  PagePool pool("BF16", 5);
  std::vector<PageRef> pages;
  for (int i = 0; i < 5; ++i) {
    pages.push_back(TakeOrDie(pool));
    EXPECT_EQ(TableEntry(pages.back().id()), i);
    EXPECT_EQ(pages.back().num_owners(), 1);
    EXPECT_EQ(pool.num_free(), 4 - i);
  }
}

TEST(PagePool, AnEmptyPoolAnswersWithTheNumbers) {
  PagePool pool("encoded", 1);
  const PageRef page = TakeOrDie(pool);
  const Status status = pool.Take().status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "out of encoded pages: 1 needed, 0 of 1 free");
  EXPECT_EQ(pool.num_used(), 1);
}

TEST(PagePool, ZeroPagesIsAPoolThatIsAlwaysFull) {
  PagePool pool("encoded", 0);
  EXPECT_FALSE(pool.Take().ok());
  EXPECT_TRUE(pool.CheckFree(0).ok());
}

TEST(PagePool, ReleasingTheLastOwnerReturnsThePage) {
  PagePool pool("BF16", 1);
  PageRef first = TakeOrDie(pool);
  PageRef second = first.Share();
  EXPECT_EQ(first.num_owners(), 2);
  EXPECT_EQ(first.id(), second.id());
  first.Reset();
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(second.num_owners(), 1);
  second.Reset();
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(PagePool, MovingAHandleChangesNoCount) {
  PagePool pool("BF16", 2);
  PageRef source = TakeOrDie(pool);
  const PageId id = source.id();
  PageRef moved = std::move(source);
  EXPECT_FALSE(source);  // NOLINT(bugprone-use-after-move): a moved-from handle is empty by contract
  EXPECT_EQ(moved.id(), id);
  EXPECT_EQ(moved.num_owners(), 1);
  PageRef other = TakeOrDie(pool);
  other = std::move(moved);  // gives up the page it held
  EXPECT_EQ(other.id(), id);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(PagePool, AnEmptyHandleHoldsNothing) {
  PageRef empty;
  EXPECT_FALSE(empty);
  EXPECT_FALSE(empty.Share());
  EXPECT_EQ(empty.num_owners(), 0);
  EXPECT_EQ(empty.id(), PageId::kNone);
  empty.Reset();
}

TEST(PagePoolDeathTest, DestroyingAPoolWithLivePagesAborts) {
  EXPECT_DEATH(
      {
        std::optional<PagePool> pool(std::in_place, "BF16", 3);
        const PageRef page = std::move(pool->Take()).value();
        pool.reset();
      },
      "1 BF16 pages are still held");
}

}  // namespace
}  // namespace oscar::pool
