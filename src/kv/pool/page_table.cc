#include "src/kv/pool/page_table.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace oscar::pool {

void PageTable::Resize(int num_entries) {
  OSCAR_CHECK(num_entries >= 0);
  pages_.resize(static_cast<std::size_t>(num_entries));
  entries_.resize(static_cast<std::size_t>(num_entries), kNoPage);
}

PageRef PageTable::Place(int page_index, PageRef page) {
  OSCAR_CHECK(page_index >= 0 && page_index < num_entries());
  const auto index = static_cast<std::size_t>(page_index);
  entries_[index] = TableEntry(page.id());
  return std::exchange(pages_[index], std::move(page));
}

void PageTable::Drop(int first, int end) {
  for (int index = std::max(first, 0); index < std::min(end, num_entries()); ++index) Place(index, PageRef());
}

const PageRef& PageTable::page(int page_index) const {
  static const PageRef kEmpty;
  if (page_index < 0 || page_index >= num_entries()) return kEmpty;
  return pages_[static_cast<std::size_t>(page_index)];
}

PageTable PageTable::Share() const {
  PageTable shared;
  shared.entries_ = entries_;
  shared.pages_.reserve(pages_.size());
  for (const PageRef& page : pages_) shared.pages_.push_back(page.Share());
  return shared;
}

}  // namespace oscar::pool
