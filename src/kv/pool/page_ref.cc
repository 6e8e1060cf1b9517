#include "src/kv/pool/page_ref.h"

#include <utility>

#include "src/kv/pool/page_pool.h"

namespace oscar::pool {

PageRef::PageRef(PageRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, PageId::kNone)) {}

PageRef& PageRef::operator=(PageRef&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = std::exchange(other.id_, PageId::kNone);
  }
  return *this;
}

int PageRef::num_owners() const { return pool_ == nullptr ? 0 : pool_->num_owners(id_); }

PageRef PageRef::Share() const {
  if (pool_ == nullptr) return {};
  pool_->AddOwner(id_);
  return PageRef(pool_, id_);
}

void PageRef::Reset() {
  if (pool_ == nullptr) return;
  pool_->DropOwner(id_);
  pool_ = nullptr;
  id_ = PageId::kNone;
}

}  // namespace oscar::pool
