// Shadow of a cache for tests: what each sequence should hold, as plain token numbers, and what the cache should answer
// for it. K, V and query rows are functions of the token number, layer and head, so no rows are kept and forks are
// copies.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "oscar/kv_cache.h"
#include "src/base/float_bits.h"
#include "src/kv/cache/scalar_verbs.h"

namespace oscar::cache {

// A row in [-1, 1) that depends on all arguments. kind: 0 = K, 1 = V, 2 = query.
inline void FillShadowRow(uint64_t token, int layer, int head, int kind, int head_dim, float* row) {
  uint64_t state =
      token * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(layer * 4096 + head * 4 + kind) * 0xD1B54A32D192ED03u;
  for (int i = 0; i < head_dim; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t bits = state ^ (state >> 33);
    bits *= 0xFF51AFD7ED558CCDu;
    row[i] = static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23)) / (1 << 23);
  }
}

// Rows of `tokens` for all heads, token-major.
inline std::vector<float> ShadowRows(const std::vector<uint64_t>& tokens, int layer, int num_heads, int kind,
                                     int head_dim) {
  std::vector<float> rows(tokens.size() * static_cast<std::size_t>(num_heads * head_dim));
  float* row = rows.data();
  for (const uint64_t token : tokens) {
    for (int head = 0; head < num_heads; ++head, row += head_dim)
      FillShadowRow(token, layer, head, kind, head_dim, row);
  }
  return rows;
}

// The bytes that ScalarVerbs stores for one page of `tokens`, encoded one row at a time from the token numbers.
inline std::vector<std::byte> ShadowEncodedPage(const std::vector<uint64_t>& tokens, int page_index, int layer,
                                                const KvShape& shape) {
  const auto d = static_cast<std::size_t>(shape.head_dim);
  std::vector<std::byte> page(static_cast<std::size_t>(shape.num_kv_heads) * ScalarPageBytes(shape.head_dim));
  std::byte* out = page.data();
  std::vector<float> row(d);
  std::vector<uint16_t> bf16(d);
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    for (int kind = 0; kind < 2; ++kind) {
      for (int i = 0; i < kPageTokens; ++i, out += ScalarRowBytes(shape.head_dim)) {
        const uint64_t token = tokens[static_cast<std::size_t>(page_index * kPageTokens + i)];
        FillShadowRow(token, layer, head, kind, shape.head_dim, row.data());
        for (std::size_t j = 0; j < d; ++j) bf16[j] = base::Bf16FromF32(row[j]);
        EncodeScalarRow(bf16.data(), page_index, shape.head_dim, out);
      }
    }
  }
  return page;
}

// Attention over a sequence of `tokens` in one layer and KV head, every row in the tier of method.md 5.1.
class ShadowAttention {
 public:
  ShadowAttention(const std::vector<uint64_t>& tokens, int layer, int kv_head, const KvShape& shape)
      : tokens_(tokens), layer_(layer), d_(static_cast<std::size_t>(shape.head_dim)) {
    std::vector<float> row(d_);
    std::vector<uint16_t> bf16(d_);
    std::vector<std::byte> bytes(ScalarRowBytes(shape.head_dim));
    for (int kind = 0; kind < 2; ++kind) {
      exact_[kind].resize(tokens.size() * d_);
      encoded_[kind].resize(tokens.size() * d_);
      for (std::size_t token = 0; token < tokens.size(); ++token) {
        FillShadowRow(tokens[token], layer, kv_head, kind, shape.head_dim, row.data());
        for (std::size_t i = 0; i < d_; ++i) {
          bf16[i] = base::Bf16FromF32(row[i]);
          exact_[kind][token * d_ + i] = base::F32FromBf16(bf16[i]);
        }
        const int page_index = static_cast<int>(token) / kPageTokens;
        EncodeScalarRow(bf16.data(), page_index, shape.head_dim, bytes.data());
        DecodeScalarRow(bytes.data(), page_index, shape.head_dim, &encoded_[kind][token * d_]);
      }
    }
  }
  // The output of the query of `query_head` at `position`.
  std::vector<double> At(int position, int query_head, int sink, int recent, double scale) const {
    VisibleRows rows;
    for (int token = 0; token <= position; ++token) {
      // Encoded when its page lies behind the sink and ends before position - recent (written out; not IsEncoded).
      const bool is_encoded = token >= sink && int64_t{token / 64 * 64 + 63} < int64_t{position} - recent;
      const auto offset = static_cast<std::size_t>(token) * d_;
      rows.keys.push_back((is_encoded ? encoded_ : exact_)[0].data() + offset);
      rows.values.push_back((is_encoded ? encoded_ : exact_)[1].data() + offset);
    }
    const int head_dim = static_cast<int>(d_);
    std::vector<float> query(d_);
    FillShadowRow(tokens_[static_cast<std::size_t>(position)], layer_, query_head, 2, head_dim, query.data());
    std::vector<double> out(d_);
    AttendScalar(query.data(), rows, head_dim, scale, out.data());
    return out;
  }

 private:
  std::vector<uint64_t> tokens_;
  int layer_;
  std::size_t d_;
  std::vector<double> exact_[2], encoded_[2];  // K and V, [token][d]
};

}  // namespace oscar::cache
