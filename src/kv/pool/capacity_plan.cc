#include "src/kv/pool/capacity_plan.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "src/base/status_macros.h"

namespace oscar::pool {
namespace {

Status Invalid(const std::string& message) { return {StatusCode::kInvalidArgument, message}; }

Status CheckConfig(const KvCacheConfig& config) {
  const KvShape& shape = config.shape;
  if (shape.num_layers < 1 || shape.num_query_heads < 1 || shape.num_kv_heads < 1 || shape.head_dim < 1) {
    return Invalid("KV shape " + std::to_string(shape.num_layers) + " layers, " +
                   std::to_string(shape.num_query_heads) + " query heads, " + std::to_string(shape.num_kv_heads) +
                   " KV heads, head_dim " + std::to_string(shape.head_dim) + ": every number must be at least 1");
  }
  if (shape.num_query_heads % shape.num_kv_heads != 0) {
    return Invalid(std::to_string(shape.num_query_heads) + " query heads are no multiple of " +
                   std::to_string(shape.num_kv_heads) + " KV heads");
  }
  struct Window {
    const char* name;
    int tokens;
  };
  for (const Window& window : {Window{"sink", config.sink}, Window{"recent", config.recent}}) {
    if (window.tokens < 0 || window.tokens % kPageTokens != 0 || window.tokens > kMaxSequenceTokens) {
      return Invalid(std::string(window.name) + " window of " + std::to_string(window.tokens) +
                     " tokens: a multiple of 64 from 0 on is needed");
    }
  }
  if (config.max_tokens < 1)
    return Invalid("max_tokens is " + std::to_string(config.max_tokens) + ", at least 1 is needed");
  if (config.max_sequences < 1 || config.max_step_tokens < 1) {
    return Invalid("max_sequences is " + std::to_string(config.max_sequences) + " and max_step_tokens " +
                   std::to_string(config.max_step_tokens) + ", each must be at least 1");
  }
  if (config.prefix_pages < 0) return Invalid("prefix_pages is " + std::to_string(config.prefix_pages) + ", at least 0 is needed");
  return {};
}

// Product of sizes; kResourceExhausted naming `what` when it does not fit.
Result<std::size_t> Product(const char* what, std::initializer_list<std::size_t> factors) {
  // Half the range: differences of pointers into the buffer must fit a ptrdiff_t.
  constexpr std::size_t kLimit = std::numeric_limits<std::size_t>::max() / 2;
  std::size_t product = 1;
  for (const std::size_t factor : factors) {
    if (factor != 0 && product > kLimit / factor) {
      return {StatusCode::kResourceExhausted, std::string(what) + " would exceed the address space"};
    }
    product *= factor;
  }
  return product;
}

Result<int> PageCount(const char* kind, int64_t pages) {
  if (pages > std::numeric_limits<int32_t>::max()) {
    return {StatusCode::kResourceExhausted,
            std::to_string(pages) + " " + kind + " pages exceed the range of a page id"};
  }
  return static_cast<int>(pages);
}

}  // namespace

Result<CapacityPlan> PlanCapacity(const KvCacheConfig& config, const CodecInfo& codec) {
  OSCAR_TRY(CheckConfig(config));
  const bool encodes = codec.page_bytes != nullptr;
  const auto layers = static_cast<std::size_t>(config.shape.num_layers);
  const auto kv_heads = static_cast<std::size_t>(config.shape.num_kv_heads);
  const auto head_dim = static_cast<std::size_t>(config.shape.head_dim);
  CapacityPlan plan;
  plan.windows = {config.sink, encodes ? config.recent : kEverythingRecent, codec.encode_tokens};

  // K and V, two bytes each.
  OSCAR_ASSIGN_OR_RETURN(plan.bf16_page_bytes,
                         Product("a BF16 page of all layers", {layers, kv_heads, head_dim, kPageTokens * 4}));
  const int64_t sequences = std::min<int64_t>(config.max_sequences, config.max_tokens);  // an empty one needs no page
  // Every sequence ends in a partial page of its own, at worst with one token in it. Written so that max_tokens up to
  // 2^63 - 1 does not overflow.
  const int64_t pages_of_all_tokens =
      config.max_tokens / kPageTokens + (sequences * (kPageTokens - 1) + config.max_tokens % kPageTokens) / kPageTokens;
  int64_t bf16_pages = pages_of_all_tokens;
  if (encodes) {
    // A step at length n holds [EncodedEnd(n), n + step) behind the sink, and n - EncodedEnd(n) is at most recent + unit - 1.
    const int64_t window_tokens = int64_t{config.recent} + (codec.encode_tokens - 1) + config.max_step_tokens;
    const int64_t pages_per_sequence = config.sink / kPageTokens + (window_tokens + kPageTokens - 1) / kPageTokens;
    bf16_pages = std::min(bf16_pages, sequences * pages_per_sequence);
  }
  OSCAR_ASSIGN_OR_RETURN(plan.bf16_pages, PageCount("BF16", bf16_pages + config.prefix_pages));
  if (encodes) {
    OSCAR_ASSIGN_OR_RETURN(
        plan.encoded_page_bytes,
        Product("an encoded page of all layers", {layers, kv_heads, codec.page_bytes(config.shape.head_dim)}));
    // Most pages are encoded when one sequence holds all tokens: every further one has a sink and a window of its own.
    const int64_t encoded_pages = (config.max_tokens - config.recent) / kPageTokens - config.sink / kPageTokens;
    OSCAR_ASSIGN_OR_RETURN(plan.encoded_pages, PageCount("encoded", std::max<int64_t>(0, encoded_pages)));
  }
  OSCAR_TRY(Product("the BF16 pool", {plan.bf16_page_bytes, static_cast<std::size_t>(plan.bf16_pages)}).status());
  OSCAR_TRY(
      Product("the encoded pool", {plan.encoded_page_bytes, static_cast<std::size_t>(plan.encoded_pages)}).status());
  return plan;
}

}  // namespace oscar::pool
