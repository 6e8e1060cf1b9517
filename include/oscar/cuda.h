// KvCache and the moments of a calibration on a CUDA device. Only in builds with OSCAR_CUDA.
#pragma once

#include <memory>

#include "oscar/calibrate.h"
#include "oscar/kv_cache.h"

namespace oscar {

// As KvCache::Create, with pages in the memory of the current CUDA device. Rows given to Append and Attend are device pointers,
// 16-byte aligned, and everything runs in `stream` (a cudaStream_t, which must outlive the cache): Append and Attend return
// before their work is done. Methods: bf16, and those of int2 whose encoder is min-max or error feedback; head dimensions 64,
// 128, 192 and 256; else kUnsupported.
Result<std::unique_ptr<KvCache>> CreateCudaKvCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config,
                                                   Executor& executor, StreamHandle stream);

// Moments whose Add and AddOutputs take device pointers, of rows that `stream` (which must outlive the moments) has made or will have
// made, and wait for it. Summed on the device, in double as on the CPU and in a fixed order; where the end of a pass fails there, the
// next Add or the fit returns the error. For JoinHeads all passes must have ended. Beside the errors of CheckOscarFit and
// CheckBalancedFit: kUnsupported unless the head dimension is a multiple of 32 up to 256.
Result<MomentAccumulator> CreateCudaMoments(const KvShape& shape, const OscarFitOptions& options, StreamHandle stream);
Result<BalancedMoments> CreateCudaBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens, StreamHandle stream);

}  // namespace oscar
