#include "src/kv/pool/page_pool.h"

#include <utility>

#include "src/base/check.h"

namespace oscar::pool {

PagePool::PagePool(std::string kind, int num_pages) : kind_(std::move(kind)) {
  OSCAR_CHECK(num_pages >= 0);
  owners_.assign(static_cast<std::size_t>(num_pages), 0);
  free_.reserve(owners_.size());
  // Low ids on top: a pool that never fills touches only the start of its memory.
  for (int id = num_pages - 1; id >= 0; --id) free_.push_back(id);
}

PagePool::~PagePool() {
  OSCAR_CHECK_MSG(num_free() == num_pages(),
                  std::to_string(num_used()) + " " + kind_ + " pages are still held while their pool is destroyed");
}

Result<PageRef> PagePool::Take() {
  OSCAR_CHECK_MSG(free_.size() <= owners_.size(), kind_);
  if (free_.empty()) return CheckFree(1);
  const int32_t id = free_.back();
  free_.pop_back();
  OSCAR_CHECK(owners_[static_cast<std::size_t>(id)] == 0);
  owners_[static_cast<std::size_t>(id)] = 1;
  return PageRef(this, static_cast<PageId>(id));
}

Status PagePool::CheckFree(int count) const {
  if (count <= num_free()) return {};
  return {StatusCode::kResourceExhausted, "out of " + kind_ + " pages: " + std::to_string(count) + " needed, " +
                                              std::to_string(num_free()) + " of " + std::to_string(num_pages()) +
                                              " free"};
}

void PagePool::AddOwner(PageId id) {
  int32_t& owners = owners_[static_cast<std::size_t>(id)];
  OSCAR_CHECK(owners > 0);
  ++owners;
}

void PagePool::DropOwner(PageId id) {
  int32_t& owners = owners_[static_cast<std::size_t>(id)];
  OSCAR_CHECK(owners > 0);
  if (--owners == 0) free_.push_back(TableEntry(id));
}

PoolSnapshot PagePool::Snapshot() const { return {free_, owners_}; }

}  // namespace oscar::pool
