// KvVerbs: the level-1 verbs of oscar/kernels.h as the cache calls them. KvCache::Create binds the real ones; tests
// bind a slow stand-in through the same constructor, so that the bookkeeping is judged without the kernels.
#pragma once

#include <cstddef>

#include "oscar/kernels.h"

namespace oscar::cache {

class KvVerbs {
 public:
  virtual ~KvVerbs() = default;
  // Contracts: the functions of the same names in oscar/kernels.h.
  virtual Status Append(const KernelContext& context, const AppendParams& params) = 0;
  virtual Status Demote(const KernelContext& context, const DemoteParams& params) = 0;
  virtual Status Attend(const KernelContext& context, const AttendParams& params) = 0;
  virtual std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params) = 0;
};

}  // namespace oscar::cache
