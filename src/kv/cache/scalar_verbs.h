// ScalarVerbs: the four verbs in plain loops and double precision, for tests of the cache. Its own min-max 2-bit rows,
// no transforms, any head dimension. It checks what it is given: a missing page or a short workspace is an error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "src/base/float_bits.h"
#include "src/kv/cache/kv_verbs.h"

namespace oscar::cache {

// Row of the stand-in: d/4 code bytes, f16 scale, f16 offset. d must be a multiple of 4.
inline std::size_t ScalarRowBytes(int head_dim) { return static_cast<std::size_t>(head_dim / 4 + 4); }
inline std::size_t ScalarPageBytes(int head_dim) { return 2 * kPageTokens * ScalarRowBytes(head_dim); }

inline const CodecInfo kScalarInt2 = {
    .name = "int2", .bits = 2, .encode_tokens = kPageTokens, .page_bytes = ScalarPageBytes, .methods = {}};
inline const CodecInfo kScalarBf16 = {.name = "bf16", .bits = 16};

// A mean that depends on the page, as the rotating key mean does: an encoder that is told a wrong page index shows.
inline double ScalarMean(int page_index) { return 0.125 * page_index; }

inline void EncodeScalarRow(const uint16_t* row, int page_index, int head_dim, std::byte* out) {
  const auto centred = [&](int i) { return static_cast<float>(base::F32FromBf16(row[i]) - ScalarMean(page_index)); };
  float low = std::numeric_limits<float>::infinity(), high = -low;
  for (int i = 0; i < head_dim; ++i) {
    low = std::min(low, centred(i));
    high = std::max(high, centred(i));
  }
  const uint16_t scale_bits = base::F16FromF32((high - low) / 3), offset_bits = base::F16FromF32(low);
  const float scale = base::F32FromF16(scale_bits), offset = base::F32FromF16(offset_bits);
  for (int byte = 0; byte < head_dim / 4; ++byte) {
    unsigned packed = 0;
    for (int i = 0; i < 4; ++i) {
      const float value = centred(4 * byte + i);
      const float code = scale == 0 ? 0 : std::clamp(std::floor((value - offset) / scale + 0.5f), 0.0f, 3.0f);
      packed |= static_cast<unsigned>(code) << (2 * i);
    }
    out[byte] = static_cast<std::byte>(packed);
  }
  std::memcpy(out + head_dim / 4, &scale_bits, 2);
  std::memcpy(out + head_dim / 4 + 2, &offset_bits, 2);
}

inline void DecodeScalarRow(const std::byte* in, int page_index, int head_dim, double* row) {
  uint16_t scale_bits, offset_bits;
  std::memcpy(&scale_bits, in + head_dim / 4, 2);
  std::memcpy(&offset_bits, in + head_dim / 4 + 2, 2);
  const double scale = base::F32FromF16(scale_bits), offset = base::F32FromF16(offset_bits) + ScalarMean(page_index);
  for (int i = 0; i < head_dim; ++i)
    row[i] = offset + scale * ((static_cast<unsigned>(in[i / 4]) >> (2 * (i % 4))) & 3);
}

// K and V rows of the tokens that one query sees, [d] each.
struct VisibleRows {
  std::vector<const double*> keys, values;
};

// softmax(scale q k) v into out [d].
inline void AttendScalar(const float* query, const VisibleRows& rows, int head_dim, double scale, double* out) {
  std::vector<double> scores;
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double* key : rows.keys) {
    double score = 0;
    for (int i = 0; i < head_dim; ++i) score += query[i] * key[i];
    scores.push_back(score * scale);
    top = std::max(top, scores.back());
  }
  std::fill(out, out + head_dim, 0.0);
  for (std::size_t t = 0; t < rows.values.size(); ++t) {
    const double weight = std::exp(scores[t] - top);
    sum += weight;
    for (int i = 0; i < head_dim; ++i) out[i] += weight * rows.values[t][i];
  }
  for (int i = 0; i < head_dim; ++i) out[i] /= sum;
}

class ScalarVerbs final : public KvVerbs {
 public:
  Status Append(const KernelContext& context, const AppendParams& params) override {
    for (int token = 0; token < params.keys.num_tokens; ++token) {
      const int position = params.first_position + token;
      for (int head = 0; head < context.shape.num_kv_heads; ++head) {
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          const RowsView<const float>& rows = side == KvSide::kKey ? params.keys : params.values;
          uint16_t* to = Bf16Row(context, params.storage, params.bf16_table, position, head, side);
          if (to == nullptr) return Missing("BF16", position);
          for (int i = 0; i < context.shape.head_dim; ++i) {
            const float value = rows.Row(token, head)[i];
            if (!std::isfinite(value)) {
              return {StatusCode::kNonFinite, "layer " + std::to_string(params.layer) + ", head " +
                                                  std::to_string(head) + ", position " + std::to_string(position) +
                                                  (side == KvSide::kKey ? ", K" : ", V")};
            }
            to[i] = base::Bf16FromF32(value);
          }
        }
      }
    }
    return {};
  }

  Status Demote(const KernelContext& context, const DemoteParams& params) override {
    for (const DemoteParams::Page& page : params.pages) {
      if (page.bf16_page == kNoPage || page.encoded_page == kNoPage) return Missing("demoted", page.page_index * 64);
      const std::vector<int32_t> bf16_table(static_cast<std::size_t>(page.page_index) + 1, page.bf16_page);
      const std::vector<int32_t> encoded_table(static_cast<std::size_t>(page.page_index) + 1, page.encoded_page);
      for (int head = 0; head < context.shape.num_kv_heads; ++head) {
        for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
          for (int row = 0; row < kPageTokens; ++row) {
            const int position = page.page_index * kPageTokens + row;
            EncodeScalarRow(Bf16Row(context, params.storage, bf16_table, position, head, side), page.page_index,
                            context.shape.head_dim,
                            EncodedRow(context, params.storage, encoded_table, position, head, side));
          }
        }
      }
    }
    return {};
  }

  Status Attend(const KernelContext& context, const AttendParams& params) override {
    if (params.workspace.size() < AttendWorkspaceBytes(context, params)) {
      return {StatusCode::kInternal, "the workspace is too small"};
    }
    int first_row = 0;
    for (const AttendSequence& sequence : params.sequences) {
      for (int kv_head = 0; kv_head < context.shape.num_kv_heads; ++kv_head) {
        const ReadableRows readable = Decode(context, params, sequence, kv_head);
        for (int query = 0; query < sequence.num_queries; ++query) {
          VisibleRows visible;
          if (Status status = Select(context, params, readable, sequence.first_position + query, visible);
              !status.ok()) {
            return status;
          }
          for (int i = 0; i < context.shape.group(); ++i) {
            const int head = kv_head * context.shape.group() + i;
            std::vector<double> out(static_cast<std::size_t>(context.shape.head_dim));
            AttendScalar(params.queries.Row(first_row + query, head), visible, context.shape.head_dim, params.scale,
                         out.data());
            std::copy(out.begin(), out.end(), params.out.Row(first_row + query, head));
          }
        }
      }
      first_row += sequence.num_queries;
    }
    return {};
  }

  std::size_t AttendWorkspaceBytes(const KernelContext&, const AttendParams& params) override {
    return 100 * static_cast<std::size_t>(params.queries.num_tokens);
  }

 private:
  static Status Missing(const char* what, int position) {
    return {StatusCode::kInternal, std::string("no ") + what + " page for position " + std::to_string(position)};
  }
  static uint16_t* Bf16Row(const KernelContext& context, const LayerStorage& storage, std::span<const int32_t> table,
                           int position, int head, KvSide side) {
    const auto index = static_cast<std::size_t>(position / kPageTokens);
    if (index >= table.size() || table[index] == kNoPage) return nullptr;
    const auto d = static_cast<std::size_t>(context.shape.head_dim);
    std::byte* page = storage.bf16_pages + static_cast<std::size_t>(table[index]) * storage.bf16_page_stride;
    const auto row =
        static_cast<std::size_t>((head * 2 + static_cast<int>(side)) * kPageTokens + position % kPageTokens);
    return reinterpret_cast<uint16_t*>(page) + row * d;
  }
  static std::byte* EncodedRow(const KernelContext& context, const LayerStorage& storage,
                               std::span<const int32_t> table, int position, int head, KvSide side) {
    const auto index = static_cast<std::size_t>(position / kPageTokens);
    if (index >= table.size() || table[index] == kNoPage || storage.encoded_pages == nullptr) return nullptr;
    std::byte* page = storage.encoded_pages + static_cast<std::size_t>(table[index]) * storage.encoded_page_stride;
    const auto row =
        static_cast<std::size_t>((head * 2 + static_cast<int>(side)) * kPageTokens + position % kPageTokens);
    return page + row * ScalarRowBytes(context.shape.head_dim);
  }
  // Decoded rows of one sequence and KV head, [position][d], in each form that its pages have; `present` by position.
  struct ReadableRows {
    struct Form {
      std::vector<double> keys, values;
      std::vector<bool> present;
    } bf16, encoded;
  };
  static ReadableRows Decode(const KernelContext& context, const AttendParams& params, const AttendSequence& sequence,
                             int head) {
    const auto d = static_cast<std::size_t>(context.shape.head_dim);
    const int length = sequence.first_position + sequence.num_queries;
    ReadableRows rows;
    for (auto* form : {&rows.bf16, &rows.encoded}) {
      form->keys.resize(static_cast<std::size_t>(length) * d);
      form->values.resize(static_cast<std::size_t>(length) * d);
      form->present.resize(static_cast<std::size_t>(length));
    }
    for (int token = 0; token < length; ++token) {
      const auto index = static_cast<std::size_t>(token);
      for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
        const bool is_key = side == KvSide::kKey;
        if (const uint16_t* row = Bf16Row(context, params.storage, sequence.bf16_table, token, head, side)) {
          double* out = (is_key ? rows.bf16.keys : rows.bf16.values).data() + index * d;
          for (std::size_t i = 0; i < d; ++i) out[i] = base::F32FromBf16(row[i]);
          rows.bf16.present[index] = true;
        }
        if (const std::byte* row = EncodedRow(context, params.storage, sequence.encoded_table, token, head, side)) {
          DecodeScalarRow(row, token / kPageTokens, context.shape.head_dim,
                          (is_key ? rows.encoded.keys : rows.encoded.values).data() + index * d);
          rows.encoded.present[index] = true;
        }
      }
    }
    return rows;
  }
  // The rows that the query at `position` sees, each in the tier of the rule.
  static Status Select(const KernelContext& context, const AttendParams& params, const ReadableRows& rows, int position,
                       VisibleRows& visible) {
    for (int token = 0; token <= position; ++token) {
      const ReadableRows::Form& form =
          IsEncoded(token, position, params.sink, params.recent) ? rows.encoded : rows.bf16;
      const std::size_t offset = static_cast<std::size_t>(token) * static_cast<std::size_t>(context.shape.head_dim);
      if (!form.present[static_cast<std::size_t>(token)]) return Missing("readable", token);
      visible.keys.push_back(form.keys.data() + offset);
      visible.values.push_back(form.values.data() + offset);
    }
    return {};
  }
};

}  // namespace oscar::cache
