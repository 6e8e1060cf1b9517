#include "src/kv/pool/ledger.h"

#include "oscar/kv_cache.h"
#include "src/base/check.h"
#include "src/kv/pool/tier_rule.h"

namespace oscar::pool {
namespace {

constexpr double kBf16Bits = 16;

}  // namespace

double SteadyBits(const CodecInfo& codec, int head_dim) {
  if (codec.page_bytes == nullptr) return kBf16Bits;
  const double elements = 2.0 * kPageTokens * head_dim;  // K and V
  return 8.0 * static_cast<double>(codec.page_bytes(head_dim)) / elements;
}

double BitsPerElement(double steady_bits, int64_t num_tokens, int64_t bf16_tokens) {
  if (num_tokens == 0) return 0;
  const double encoded_tokens = static_cast<double>(num_tokens - bf16_tokens);
  return (kBf16Bits * static_cast<double>(bf16_tokens) + steady_bits * encoded_tokens) /
         static_cast<double>(num_tokens);
}

}  // namespace oscar::pool

namespace oscar {

BitsLedger LedgerAt(const KvMethod& method, int head_dim, int num_tokens, int sink, int recent) {
  OSCAR_CHECK(method.codec != nullptr && head_dim > 0 && num_tokens >= 0);
  OSCAR_CHECK(sink >= 0 && sink % kPageTokens == 0 && recent >= 0 && recent % kPageTokens == 0);
  const pool::TierWindows windows = {sink, method.is_exact() ? pool::kEverythingRecent : recent, method.codec->encode_tokens};
  BitsLedger ledger;
  ledger.payload = method.codec->bits;
  ledger.steady = pool::SteadyBits(*method.codec, head_dim);
  ledger.tokens = pool::SegmentsAt(num_tokens, windows);
  ledger.at_length = pool::BitsPerElement(ledger.steady, num_tokens, num_tokens - ledger.tokens.body);
  if (num_tokens > 0) {
    // Encoded pages are always full; the unfilled slots are those of the last BF16 page.
    const int bf16_pages = pool::PagesFor(num_tokens) - ledger.tokens.body / kPageTokens;
    const double bits = 16.0 * kPageTokens * bf16_pages + ledger.steady * ledger.tokens.body;
    ledger.allocated = bits / num_tokens;
  }
  return ledger;
}

}  // namespace oscar
