// PageId: the number of a page in one PagePool. The same id names the page of every layer; which pool it belongs to is
// the business of the PageRef that holds it.
#pragma once

#include <cstdint>

#include "oscar/kernels.h"

namespace oscar::pool {

enum class PageId : int32_t { kNone = kNoPage };

// The id as it stands in a page table (kernels.h): kNone becomes kNoPage.
constexpr int32_t TableEntry(PageId id) { return static_cast<int32_t>(id); }

}  // namespace oscar::pool
