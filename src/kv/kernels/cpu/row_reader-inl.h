// Row codecs (row_codec.h) behind the loops of this folder: a page reader over 16 decoded rows at a time, and the demotion of
// whole encode units.
#if defined(OSCAR_SRC_KV_KERNELS_CPU_ROW_READER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_ROW_READER_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_ROW_READER_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_ROW_READER_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "src/base/simd_extra-inl.h"
#include "src/kv/kernels/concepts.h"
#include "src/kv/kernels/cpu/demote-inl.h"
#include "src/kv/kernels/params.h"
#include "src/kv/kernels/row_codec.h"
#include "src/kv/transform/turn_rows.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;

class RowReader {
 public:
  static constexpr bool kHasOffsets = false;
  explicit RowReader(const AttendPartParams& params)
      : codec_(*params.row_codec), head_dim_(params.head_dim), rotary_(codec_.turns_keys_back ? params.rotary : nullptr) {
    unit_.head = params.head_together;
    unit_.channel_order = params.channel_order;
  }

  // Page i of the run. The other page of its unit is its neighbour in the page table: encoded segments hold whole units.
  void OpenInRun(const AttendPartParams& params, int i) {
    const int32_t* ids = params.runs.ids[0] + i;
    const int pages_per_unit = codec_.unit_tokens / kPageTokens;
    const int page_in_unit = (params.first_encoded_page + i) % pages_per_unit;
    for (int k = 0; k < pages_per_unit; ++k) {
      unit_.pages[k] = params.pages + static_cast<size_t>(ids[k - page_in_unit]) * params.page_stride;
    }
    first_token_ = page_in_unit * kPageTokens;
    first_position_ = (params.first_page_index + i) * kPageTokens;
  }

  template <int kRows>
  HWY_INLINE void Scores(const float* HWY_RESTRICT queries, float* HWY_RESTRICT scores) const {
    const F32Tag df;
    HWY_ALIGN float tile[kTileTokens * kMaxHeadDim];
    for (int t = 0; t < kPageTokens; t += kTileTokens) {
      KeyTile(t, tile);
      for (size_t lane = 0; lane < kTileTokens; lane += kLanes) {
        F32Vec acc[kRows];
        for (int r = 0; r < kRows; ++r) acc[r] = hn::Zero(df);
        for (size_t c = 0; c < d(); ++c) {
          const F32Vec x = hn::Load(df, tile + c * kTileTokens + lane);
          for (int r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(hn::Set(df, queries[static_cast<size_t>(r) * kQueryStride + c]), x, acc[r]);
        }
        for (int r = 0; r < kRows; ++r) {
          hn::StoreU(acc[r], df, scores + static_cast<size_t>(r) * kScoreStride + static_cast<size_t>(t) + lane);
        }
      }
    }
  }
  HWY_INLINE F32Vec FinishScore(size_t /*t*/, F32Vec score, F32Vec /*query_sum*/) const { return score; }
  HWY_INLINE F32Vec SplitWeight(size_t /*t*/, F32Vec probability, F32Vec& /*offset_sum*/) const { return probability; }

  template <int kRows>
  HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, float* HWY_RESTRICT output) const {
    const F32Tag df;
    HWY_ALIGN float tile[kTileTokens * kMaxHeadDim];
    for (int t = 0; t < kPageTokens; t += kTileTokens) {
      ValueTile(t, kTileTokens, tile);
      for (size_t c = 0; c < d(); c += kLanes) {
        for (int r = 0; r < kRows; ++r) {
          const float* HWY_RESTRICT at = weights + static_cast<size_t>(r) * kScoreStride + t;
          float* HWY_RESTRICT out = output + static_cast<size_t>(r) * d() + c;
          F32Vec acc = hn::LoadU(df, out);
          for (size_t j = 0; j < kTileTokens; ++j) acc = hn::MulAdd(hn::Set(df, at[j]), hn::LoadU(df, tile + j * d() + c), acc);
          hn::StoreU(acc, df, out);
        }
      }
    }
  }

  void KeyTile(int t, float* HWY_RESTRICT tile) const {
    HWY_ALIGN float rows[kTileTokens * kMaxHeadDim];
    codec_.read_tile(KvSide::kKey, head_dim_, unit_, first_token_ + t, rows);
    for (int j = 0; rotary_ != nullptr && j < kTileTokens; ++j) {
      transform::TurnRow(*rotary_, first_position_ + t + j, {rows + static_cast<size_t>(j) * d(), d()});
    }
    for (size_t c = 0; c < d(); ++c) {
      for (size_t j = 0; j < kTileTokens; ++j) tile[c * kTileTokens + j] = rows[j * d() + c];
    }
  }
  // Encoded pages are whole, so that `count` is 16.
  void ValueTile(int t, int /*count*/, float* HWY_RESTRICT tile) const {
    codec_.read_tile(KvSide::kValue, head_dim_, unit_, first_token_ + t, tile);
  }

 private:
  size_t d() const { return static_cast<size_t>(head_dim_); }

  const RowCodec& codec_;
  const int head_dim_;
  const RotaryEmbedding* const rotary_;  // null unless keys are turned when they are read
  UnitPages<const std::byte> unit_;
  int first_token_ = 0;     // of the open page, in its unit
  int first_position_ = 0;  // of the open page
};

// Rows [unit_tokens, d] of one KV head of a unit, in code space. Returns the first that is not finite, or -1.
inline int RowsOfHead(const DemoteSideParams& params, int head, float* HWY_RESTRICT rows) {
  const RowCodec& codec = *params.row_codec;
  const size_t d = static_cast<size_t>(params.head_dim);
  HWY_ALIGN float centred[kTileTokens * kMaxHeadDim];
  for (int token = 0; token < codec.unit_tokens; token += kTileTokens) {
    const uint16_t* page = (token < kPageTokens ? params.rows : params.second_rows) +
                           static_cast<size_t>(head) * Bf16HeadBytes(params.head_dim) / sizeof(uint16_t);
    float* tile = rows + static_cast<size_t>(token) * d;
    CentreRows(page + static_cast<size_t>(token % kPageTokens) * d, params.mean, d, centred);
    transform::HWY_NAMESPACE::MapRows</*kFused=*/false>(*params.row.transform, params.row.transform->matrix(),
                                                        base::DenseRows<const float>(centred, params.head_dim), kTileTokens,
                                                        base::DenseRows(tile, params.head_dim));
    for (int j = 0; codec.turns_keys_back && params.side == KvSide::kKey && j < kTileTokens; ++j) {
      transform::TurnRow(*params.rotary, -(params.first_position + token + j), {tile + static_cast<size_t>(j) * d, d});
    }
    if (codec.rounds_rows) RoundRowsToBf16(kTileTokens * d, tile);
    for (size_t i = 0; i < kTileTokens * d; ++i) {
      if (!std::isfinite(tile[i])) return token + static_cast<int>(i / d);
    }
  }
  return -1;
}

// One side of one (encode unit, KV head or heads together). Returns as DemoteSideFn, counted over the unit.
inline int DemoteRows(const DemoteSideParams& params) {
  const RowCodec& codec = *params.row_codec;
  HWY_ALIGN float rows[kMaxRowValues];
  const size_t head_values = static_cast<size_t>(codec.unit_tokens) * static_cast<size_t>(params.head_dim);
  for (int head = 0; head < codec.heads_together; ++head) {
    const int failed = RowsOfHead(params, head, rows + static_cast<size_t>(head) * head_values);
    if (failed >= 0) return failed;
  }
  return codec.encode(params.side, params.head_dim, rows, {{params.encoded, params.second_encoded}, 0, params.row.channel_order});
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
