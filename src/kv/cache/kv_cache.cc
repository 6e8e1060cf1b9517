// KvCache::Create: PagedKvCache over the level-1 verbs of this library.
#include "oscar/kv_cache.h"

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "oscar/kernels.h"
#include "src/kv/cache/paged_kv_cache.h"

namespace oscar {
namespace {

class LibraryVerbs final : public cache::KvVerbs {
 public:
  Status Append(const KernelContext& context, const AppendParams& params) override {
    return oscar::Append(context, params);
  }
  Status Demote(const KernelContext& context, const DemoteParams& params) override {
    return oscar::Demote(context, params);
  }
  Status Attend(const KernelContext& context, const AttendParams& params) override {
    return oscar::Attend(context, params);
  }
  std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params) override {
    return oscar::AttendWorkspaceBytes(context, params);
  }
};

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvMethod& method, CodecProfile profile,
                                                 const KvCacheConfig& config, Executor& executor) {
  if (method.codec != nullptr && method.codec->name == "f16") {
    return {StatusCode::kUnsupported, "f16 is llama.cpp's cache, which the engine keeps with ggml's operations on the CPU; pages hold bf16"};
  }
  try {
    auto cache =
        cache::PagedKvCache::Create(method, std::move(profile), config, executor, std::make_unique<LibraryVerbs>());
    if (!cache.ok()) return cache.status();
    return std::unique_ptr<KvCache>(std::move(cache).value());
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted,
            "no memory for the page lists of a cache of " + std::to_string(config.max_tokens) + " tokens"};
  }
}

}  // namespace oscar
