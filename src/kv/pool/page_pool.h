// PagePool: which pages of one kind (BF16 or encoded) are free and how many handles hold each of the others. It knows
// no bytes, no layers and no policy; the memory belongs to the cache. A cache has one pool per kind, so that neither
// kind can starve the other (method.md 11, test 23). Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/kv/pool/page_ref.h"
#include "src/kv/pool/snapshot.h"

namespace oscar::pool {

class PagePool {
 public:
  // kind: "BF16" or "encoded", for messages. num_pages >= 0.
  PagePool(std::string kind, int num_pages);
  // Aborts while a page is held: a handle that outlives its pool would write into freed memory.
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A page with one owner; its contents are whatever they were. kResourceExhausted when none is free.
  Result<PageRef> Take();
  // OK when `count` more pages can be taken, otherwise kResourceExhausted with the numbers. Takes nothing.
  Status CheckFree(int count) const;

  int num_pages() const { return static_cast<int>(owners_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return num_pages() - num_free(); }
  int num_owners(PageId id) const { return owners_[static_cast<std::size_t>(id)]; }
  PoolSnapshot Snapshot() const;

 private:
  friend class PageRef;
  void AddOwner(PageId id);
  void DropOwner(PageId id);

  std::string kind_;
  std::vector<int32_t>
      free_;  // a stack: the page released last is taken first, since it is the likeliest in a CPU cache
  std::vector<int32_t> owners_;  // [num_pages] handles per page; 0 = free
};

}  // namespace oscar::pool
