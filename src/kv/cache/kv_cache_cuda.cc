// CreateCudaKvCache: PagedKvCache over the verbs of a CUDA device.
#include <new>
#include <utility>

#include "oscar/cuda.h"
#include "src/base/status_macros.h"
#include "src/kv/cache/device_verbs_cuda.h"
#include "src/kv/cache/paged_kv_cache.h"

namespace oscar {

Result<std::unique_ptr<KvCache>> CreateCudaKvCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config,
                                                   Executor& executor, StreamHandle stream) {
  try {
    OSCAR_ASSIGN_OR_RETURN(auto verbs, cache::DeviceVerbs::Create(method, profile, config, static_cast<cudaStream_t>(stream)));
    auto cache = cache::PagedKvCache::Create(method, std::move(profile), config, executor, std::move(verbs));
    if (!cache.ok()) return cache.status();
    return std::unique_ptr<KvCache>(std::move(cache).value());
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no memory for the page lists of a cache of " + std::to_string(config.max_tokens) + " tokens"};
  }
}

}  // namespace oscar
