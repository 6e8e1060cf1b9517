// KvCache on a CUDA device. Only in builds with OSCAR_CUDA.
#pragma once

#include <memory>

#include "oscar/kv_cache.h"

namespace oscar {

// As KvCache::Create, with pages in the memory of the current CUDA device. Rows given to Append and Attend are device pointers,
// 16-byte aligned, and everything runs in `stream` (a cudaStream_t, which must outlive the cache): Append and Attend return
// before their work is done. Methods: bf16, and those of int2 whose encoder is min-max or error feedback; head dimensions 64,
// 128, 192 and 256; else kUnsupported.
Result<std::unique_ptr<KvCache>> CreateCudaKvCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config,
                                                   Executor& executor, StreamHandle stream);

}  // namespace oscar
