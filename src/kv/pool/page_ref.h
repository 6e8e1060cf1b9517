// PageRef: a counted handle and the only way to hold a page. The last handle of a page returns it to its pool.
// Move-only: a second owner is made by Share(), so that no copy happens by accident. Not thread-safe, as the pool.
#pragma once

#include "src/kv/pool/page_id.h"

namespace oscar::pool {

class PagePool;

class PageRef {
 public:
  PageRef() = default;  // holds nothing
  ~PageRef() { Reset(); }
  PageRef(PageRef&& other) noexcept;
  PageRef& operator=(PageRef&& other) noexcept;
  PageRef(const PageRef&) = delete;
  PageRef& operator=(const PageRef&) = delete;

  explicit operator bool() const { return pool_ != nullptr; }
  PageId id() const { return id_; }
  // Handles on this page, this one included; 0 for an empty handle. A page may be written only while this is 1.
  int num_owners() const;
  // Another handle on the same page; empty from empty.
  PageRef Share() const;
  void Reset();

 private:
  friend class PagePool;
  PageRef(PagePool* pool, PageId id) : pool_(pool), id_(id) {}  // adopts a count that the pool has made

  PagePool* pool_ = nullptr;
  PageId id_ = PageId::kNone;
};

}  // namespace oscar::pool
