// PageTable: the pages of one kind that a sequence holds, by page index (position / 64), with the same ids as a plain
// int32 table for the kernels. The two views cannot part: every change goes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/pool/page_ref.h"

namespace oscar::pool {

class PageTable {
 public:
  int num_entries() const { return static_cast<int>(pages_.size()); }
  // Grows with empty entries, or shrinks and gives up the pages behind `num_entries`.
  void Resize(int num_entries);
  // Puts `page` at `page_index` (inside the table) and returns what stood there.
  PageRef Place(int page_index, PageRef page);
  // Gives up the pages of indices [first, end), as far as the table reaches.
  void Drop(int first, int end);
  // An empty handle outside the table.
  const PageRef& page(int page_index) const;
  std::span<const int32_t> entries() const { return entries_; }
  // A table of further handles on the same pages.
  PageTable Share() const;

 private:
  std::vector<PageRef> pages_;
  std::vector<int32_t> entries_;
};

}  // namespace oscar::pool
