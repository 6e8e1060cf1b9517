// What one sequence holds in the cache, segment by segment: `oscar.cache` of an answer (serving.md 4), which the chat page draws.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

#include "oscar/kv_cache.h"

namespace oscar::engine {

class CacheReport {
 public:
  CacheReport(const KvMethod& method, const KvCacheConfig& config, const KvCacheStats& stats);
  // Of a sequence of `num_tokens` tokens, of which `cached_tokens` were shared with an earlier one. Bytes are those of the pages that it
  // holds, unfilled places included; bytes_if_bf16 those of as many BF16 pages.
  nlohmann::ordered_json Of(int num_tokens, int cached_tokens) const;

 private:
  const KvMethod method_;
  const int head_dim_, sink_, recent_;
  const size_t bf16_page_bytes_, encoded_page_bytes_;
};

}  // namespace oscar::engine
