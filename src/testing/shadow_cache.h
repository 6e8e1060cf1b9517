// Test support: the pages of one layer filled through Append and Demote, with shuffled page ids and NaN in every byte that the
// kernels must not read, and the double-precision judge of attention over the bytes that are stored.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "oscar/kernels.h"
#include "oscar/reference.h"
#include "src/base/buffer.h"
#include "src/base/check.h"
#include "src/base/float_bits.h"
#include "src/base/status_macros.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/codec/registry.h"

namespace oscar::testing {

struct ShadowSequence {
  std::vector<int32_t> bf16_table, encoded_table;
  int num_tokens = 0;
};

class ShadowCache {
 public:
  // Room for `max_pages` pages of each kind. `context` must outlive the cache.
  ShadowCache(const KernelContext& context, int layer, int sink, int recent, int max_pages, uint64_t seed)
      : context_(context), layer_(layer), sink_(sink), recent_(recent), rng_(seed) {
    const auto heads = static_cast<size_t>(context.shape.num_kv_heads);
    storage_.bf16_page_stride = heads * 256 * static_cast<size_t>(context.shape.head_dim);
    bf16_ = base::Buffer::Allocate(storage_.bf16_page_stride * static_cast<size_t>(max_pages)).value();
    storage_.bf16_pages = bf16_.data();
    free_bf16_ = ShuffledIds(max_pages);
    if (encodes()) {
      storage_.encoded_page_stride = heads * context.codec->page_bytes(context.shape.head_dim);
      encoded_ = base::Buffer::Allocate(storage_.encoded_page_stride * static_cast<size_t>(max_pages)).value();
      storage_.encoded_pages = encoded_.data();
      free_encoded_ = ShuffledIds(max_pages);
    }
    Poison(bf16_.bytes());
    Poison(encoded_.bytes());
  }

  bool encodes() const { return context_.codec->page_bytes != nullptr; }
  const LayerStorage& storage() const { return storage_; }
  int sink() const { return sink_; }
  int recent() const { return recent_; }

  // keys, values: [n, num_kv_heads, d].
  Status Append(ShadowSequence& sequence, RowsView<const float> keys, RowsView<const float> values) {
    const int end = sequence.num_tokens + keys.num_tokens;
    const auto pages = static_cast<size_t>((end + kPageTokens - 1) / kPageTokens);
    while (sequence.bf16_table.size() < pages) sequence.bf16_table.push_back(Take(free_bf16_));
    OSCAR_TRY(oscar::Append(context_, {layer_, storage_, sequence.bf16_table, sequence.num_tokens, keys, values}));
    sequence.num_tokens = end;
    return {};
  }
  // `n` rows: normal, each channel with its own scale, so that rotations matter.
  Status AppendRandom(ShadowSequence& sequence, int n) {
    const int heads = context_.shape.num_kv_heads, d = context_.shape.head_dim;
    std::normal_distribution<float> normal;
    std::vector<float> rows[2];
    for (std::vector<float>& side : rows) {
      side.resize(static_cast<size_t>(n) * static_cast<size_t>(heads) * static_cast<size_t>(d));
      for (size_t i = 0; i < side.size(); ++i) side[i] = normal(rng_) * (i % 7 == 3 ? 2.0f : 0.5f) + (i % 11 == 0 ? 0.5f : 0.0f);
    }
    return Append(sequence, PackedRows<const float>(rows[0].data(), n, heads, d), PackedRows<const float>(rows[1].data(), n, heads, d));
  }

  // Encodes every page that a query at `position` sees encoded; its BF16 page is given back, poisoned, unless a query at
  // `oldest_position` still reads it.
  Status DemoteFor(ShadowSequence& sequence, int position, int oldest_position) {
    if (!encodes()) return {};
    std::vector<DemoteParams::Page> due;
    sequence.encoded_table.resize(sequence.bf16_table.size(), kNoPage);
    for (int i = sink_ / kPageTokens; i < EncodedEnd(position, sink_, recent_, context_.codec->encode_tokens) / kPageTokens; ++i) {
      int32_t& id = sequence.encoded_table[static_cast<size_t>(i)];
      if (id != kNoPage) continue;
      id = Take(free_encoded_);
      due.push_back({i, sequence.bf16_table[static_cast<size_t>(i)], id});
    }
    OSCAR_TRY(Demote(context_, {layer_, storage_, due}));
    for (int i = sink_ / kPageTokens; i < EncodedEnd(oldest_position, sink_, recent_, context_.codec->encode_tokens) / kPageTokens; ++i) {
      int32_t& id = sequence.bf16_table[static_cast<size_t>(i)];
      if (id == kNoPage) continue;
      Poison(bf16_.bytes().subspan(static_cast<size_t>(id) * storage_.bf16_page_stride, storage_.bf16_page_stride));
      free_bf16_.push_back(id);
      id = kNoPage;
    }
    return {};
  }

  // The row as attention must see it: BF16, or decoded and brought back from code space.
  std::vector<double> StoredRow(const ShadowSequence& sequence, int token, bool encoded, int kv_head, KvSide side) const {
    const int d = context_.shape.head_dim, slot = token % kPageTokens;
    const auto page = static_cast<size_t>(token / kPageTokens);
    if (!encoded) {
      const std::byte* head = storage_.bf16_pages + static_cast<size_t>(sequence.bf16_table[page]) * storage_.bf16_page_stride +
                              static_cast<size_t>(kv_head) * 256 * static_cast<size_t>(d);
      const auto* row = reinterpret_cast<const uint16_t*>(head) + (side == KvSide::kKey ? 0 : kPageTokens * d) + slot * d;
      std::vector<double> values;
      for (int c = 0; c < d; ++c) values.push_back(base::F32FromBf16(row[c]));
      return values;
    }
    const RowProfile profile = context_.profile->row(layer_, kv_head, side);
    if (FindCpuKernels(*context_.codec)->kernels->row_codec != nullptr) {
      return reference::InverseTransformRow(StoredCodecRow(sequence, token, kv_head, side), *profile.transform, profile.mean);
    }
    const reference::AffineRow row = StoredCodes(sequence, token, kv_head, side);
    const std::vector<float> mean = reference::PageMean(profile, context_.profile->rotary(), token / kPageTokens);
    return reference::InverseTransformRow(reference::DecodeRow(row), *profile.transform, mean);
  }

  // Of a row codec, in code space, read by the codec itself: its own tests judge that.
  std::vector<double> StoredCodecRow(const ShadowSequence& sequence, int token, int kv_head, KvSide side) const {
    const kernels::RowCodec& codec = *FindCpuKernels(*context_.codec)->kernels->row_codec;
    const auto d = static_cast<size_t>(context_.shape.head_dim);
    const int first = token - (token - sink_) % codec.unit_tokens, in_unit = token - first;
    kernels::UnitPages<const std::byte> unit;
    unit.head = kv_head % codec.heads_together;
    unit.channel_order = context_.profile->row(layer_, kv_head - unit.head, side).channel_order;
    for (int k = 0; k < codec.unit_tokens / kPageTokens; ++k) {
      const auto id = static_cast<size_t>(sequence.encoded_table[static_cast<size_t>(first / kPageTokens + k)]);
      unit.pages[k] = storage_.encoded_pages + id * storage_.encoded_page_stride +
                      static_cast<size_t>(kv_head - unit.head) * context_.codec->page_bytes(context_.shape.head_dim);
    }
    std::vector<float> rows(kernels::kRowTileTokens * d);
    codec.read_tile(side, context_.shape.head_dim, unit, in_unit / kernels::kRowTileTokens * kernels::kRowTileTokens, rows.data());
    const float* row = rows.data() + static_cast<size_t>(in_unit % kernels::kRowTileTokens) * d;
    std::vector<double> values(row, row + d);
    if (!codec.turns_keys_back || side == KvSide::kValue) return values;
    const RotaryEmbedding& rotary = context_.profile->rotary();
    for (size_t pair = 0; pair < rotary.angles.size(); ++pair) {
      double& a = values[rotary.halves ? pair : 2 * pair];
      double& b = values[rotary.halves ? pair + rotary.angles.size() : 2 * pair + 1];
      const double angle = static_cast<double>(rotary.angles[pair]) * token, x = a, y = b;
      a = x * std::cos(angle) - y * std::sin(angle);
      b = x * std::sin(angle) + y * std::cos(angle);
    }
    return values;
  }

  reference::AffineRow StoredCodes(const ShadowSequence& sequence, int token, int kv_head, KvSide side) const {
    switch (static_cast<int>(context_.codec->bits)) {
      case 1: return StoredCodesOf<1>(sequence, token, kv_head, side);
      case 4: return StoredCodesOf<4>(sequence, token, kv_head, side);
      default: return StoredCodesOf<2>(sequence, token, kv_head, side);
    }
  }

  template <int kBits>
  reference::AffineRow StoredCodesOf(const ShadowSequence& sequence, int token, int kv_head, KvSide side) const {
    using Layout = affine::PageLayout<kBits>;
    const int d = context_.shape.head_dim, slot = token % kPageTokens;
    const std::byte* head = storage_.encoded_pages +
                            static_cast<size_t>(sequence.encoded_table[static_cast<size_t>(token / kPageTokens)]) * storage_.encoded_page_stride +
                            static_cast<size_t>(kv_head) * Layout::PageBytes(d);
    reference::AffineRow row;
    std::memcpy(&row.scale_f16, head + Layout::ScalesStart(side, d) + 2 * slot, 2);
    std::memcpy(&row.offset_f16, head + Layout::OffsetsStart(side, d) + 2 * slot, 2);
    for (int c = 0; c < d; ++c) {
      const int word_index = side == KvSide::kKey ? Layout::KeyWord(slot, c, d) : Layout::ValueWord(slot, c);
      const int shift = side == KvSide::kKey ? Layout::KeyShift(c) : Layout::ValueShift(slot);
      uint32_t word;
      std::memcpy(&word, head + Layout::CodesStart(side, d) + 4 * word_index, 4);
      row.codes.push_back(static_cast<uint8_t>(word >> shift & ((1u << kBits) - 1)));
    }
    return row;
  }

  // Attention of queries [n, num_query_heads, d] from `first_position` on, in double from the stored bytes: [n][Hq][d].
  std::vector<std::vector<std::vector<double>>> Judge(const ShadowSequence& sequence, int first_position,
                                                      RowsView<const float> queries, double scale) const {
    const KvShape& shape = context_.shape;
    std::vector<std::vector<std::vector<double>>> outputs(static_cast<size_t>(queries.num_tokens));
    for (auto& heads : outputs) heads.resize(static_cast<size_t>(shape.num_query_heads));
    for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      std::vector<std::vector<double>> rows[2][2];  // [encoded][side][token]
      for (const bool encoded : {false, true}) {
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          auto& all = rows[encoded ? 1 : 0][side == KvSide::kKey ? 0 : 1];
          for (int token = 0; token < sequence.num_tokens; ++token) {
            const auto& table = encoded ? sequence.encoded_table : sequence.bf16_table;
            const auto page = static_cast<size_t>(token / kPageTokens);
            const bool held = page < table.size() && table[page] != kNoPage;
            all.push_back(held ? StoredRow(sequence, token, encoded, kv_head, side) : std::vector<double>{});
          }
        }
      }
      for (int i = 0; i < queries.num_tokens; ++i) {
        const int position = first_position + i;
        std::vector<std::vector<double>> keys, values;
        for (int token = 0; token <= position; ++token) {
          const size_t tier = encodes() && IsEncoded(token, position, sink_, recent_, context_.codec->encode_tokens) ? 1 : 0;
          keys.push_back(rows[tier][0][static_cast<size_t>(token)]);
          values.push_back(rows[tier][1][static_cast<size_t>(token)]);
        }
        for (int g = 0; g < shape.group(); ++g) {
          const int head = kv_head * shape.group() + g;
          outputs[static_cast<size_t>(i)][static_cast<size_t>(head)] = reference::Attend(
              {queries.Row(i, head), static_cast<size_t>(shape.head_dim)}, keys, values, scale);
        }
      }
    }
    return outputs;
  }

 private:
  std::vector<int32_t> ShuffledIds(int count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng_);
    return ids;
  }
  static int32_t Take(std::vector<int32_t>& ids) {
    OSCAR_CHECK(!ids.empty());
    const int32_t id = ids.back();
    ids.pop_back();
    return id;
  }
  // 0xFF.. is a NaN in bf16, f16 and f32, and codes of 3.
  static void Poison(std::span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), std::byte{0xFF}); }

  const KernelContext& context_;
  int layer_, sink_, recent_;
  std::mt19937_64 rng_;
  base::Buffer bf16_, encoded_;
  LayerStorage storage_;
  std::vector<int32_t> free_bf16_, free_encoded_;
};

}  // namespace oscar::testing
