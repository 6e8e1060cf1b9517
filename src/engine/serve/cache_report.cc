#include "src/engine/serve/cache_report.h"

#include <nlohmann/json.hpp>

namespace oscar::engine {
namespace {

size_t Pages(int tokens) { return (static_cast<size_t>(tokens) + kPageTokens - 1) / kPageTokens; }

}  // namespace

CacheReport::CacheReport(const KvMethod& method, const KvCacheConfig& config, const KvCacheStats& stats)
    : method_(method), head_dim_(config.shape.head_dim), sink_(config.sink), recent_(config.recent), bf16_page_bytes_(stats.bf16_page_bytes),
      encoded_page_bytes_(stats.encoded_page_bytes) {}

nlohmann::ordered_json CacheReport::Of(int num_tokens, int cached_tokens) const {
  const BitsLedger ledger = LedgerAt(method_, head_dim_, num_tokens, sink_, recent_);
  const SegmentTokens& tokens = ledger.tokens;
  const size_t bytes = (Pages(tokens.sink) + Pages(tokens.recent)) * bf16_page_bytes_ + Pages(tokens.body) * encoded_page_bytes_;
  const size_t bytes_if_bf16 = Pages(num_tokens) * bf16_page_bytes_;
  return {{"sink_tokens", tokens.sink}, {"history_tokens", tokens.body}, {"recent_tokens", tokens.recent}, {"cached_tokens", cached_tokens}, {"bytes", bytes},
          {"bytes_if_bf16", bytes_if_bf16}, {"saved_bytes", static_cast<int64_t>(bytes_if_bf16) - static_cast<int64_t>(bytes)},
          {"bits_per_element", ledger.at_length}};
}

}  // namespace oscar::engine
