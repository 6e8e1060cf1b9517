// KvVerbs: the level-1 verbs of oscar/kernels.h as the cache calls them, with the memory they work on. KvCache::Create
// binds the real ones, CreateCudaKvCache those of a CUDA device; tests bind a slow stand-in through the same constructor, so
// that the bookkeeping is judged without the kernels.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "oscar/kernels.h"
#include "oscar/kv_cache.h"
#include "src/base/buffer.h"
#include "src/base/status_macros.h"

namespace oscar::cache {

// Memory of pages, given back by its deleter.
using PageMemory = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;

class KvVerbs {
 public:
  virtual ~KvVerbs() = default;
  // Contracts: the functions of the same names in oscar/kernels.h.
  virtual Status Append(const KernelContext& context, const AppendParams& params) = 0;
  virtual Status Demote(const KernelContext& context, const DemoteParams& params) = 0;
  virtual Status Attend(const KernelContext& context, const AttendParams& params) = 0;
  virtual std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params) = 0;

  // Begins to encode pages whose rows are complete, one entry for each layer, beside what runs; every other verb waits for it. False:
  // nothing was begun, and Demote is to be called layer by layer.
  virtual Result<bool> DemoteAhead(const KernelContext& /*context*/, std::span<const DemoteParams> /*layers*/) { return false; }

  // KvCache::PrepareRecordedStep, of single queries; layer, queries and outputs of `params` do not count. 0: there are no recordings.
  virtual Result<uint64_t> PrepareStep(const KernelContext& /*context*/, const AttendParams& /*params*/) { return uint64_t{0}; }
  // Append of one row of each sequence of PrepareStep, then Attend; table and position of `append` do not count. Keys and queries are
  // turned first.
  virtual Status AttendStep(const KernelContext& /*context*/, const AppendParams& /*append*/, const AttendParams& /*attend*/,
                            const HeadTurn& /*turn*/) {
    return {StatusCode::kFailedPrecondition, "no recorded step was prepared"};
  }
  // The launches of a recorded step have been run again.
  virtual void NoteReplay() {}

  // Memory for pages where the verbs run: in this process unless overridden. Zero-filled; 0 bytes: null.
  // kResourceExhausted when it cannot be had.
  virtual Result<PageMemory> AllocatePages(std::size_t bytes) {
    OSCAR_ASSIGN_OR_RETURN(base::Buffer buffer, base::Buffer::Allocate(bytes));
    auto owner = std::make_shared<base::Buffer>(std::move(buffer));
    return PageMemory(owner->data(), [owner](std::byte*) mutable { owner.reset(); });
  }
  virtual void CopyPage(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  // The bytes of a page of one layer, as they stand, to this process and back: for pages that leave the pools.
  virtual Status ReadPage(const std::byte* page, std::span<std::byte> out) {
    std::memcpy(out.data(), page, out.size());
    return {};
  }
  virtual Status WritePage(std::byte* page, std::span<const std::byte> bytes) {
    std::memcpy(page, bytes.data(), bytes.size());
    return {};
  }
  // Names the layout of those bytes, for files.
  virtual std::string_view page_layout() const { return "host"; }
  // An encoded page of all KV heads in the layout of docs/kv-format.md.
  virtual Status ReadEncodedPage(const KernelContext& /*context*/, const std::byte* page, std::span<std::byte> out) {
    std::memcpy(out.data(), page, out.size());
    return {};
  }
  // The first error of verbs that returned before their work was done, once: kNonFinite as Append and Demote.
  virtual Status Verify(const KernelContext& /*context*/) { return {}; }
};

}  // namespace oscar::cache
