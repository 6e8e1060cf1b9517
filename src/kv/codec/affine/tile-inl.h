// Encoded pages read back for attention, straight from codes. Levels are centred, c - (L / 2) with the offset moved to match
// (method.md 6.2): sums of products cancel less. A word gives one code to each lane per shift, see layout.h.
#if defined(OSCAR_SRC_KV_CODEC_AFFINE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_CODEC_AFFINE_TILE_INL_H_
#undef OSCAR_SRC_KV_CODEC_AFFINE_TILE_INL_H_
#else
#define OSCAR_SRC_KV_CODEC_AFFINE_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "src/base/float_bits.h"
#include "src/base/simd_extra-inl.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/kernels/concepts.h"
#include "src/kv/kernels/params.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;
using base::HWY_NAMESPACE::kManyRegisters;
using base::HWY_NAMESPACE::U32Tag;
using base::HWY_NAMESPACE::U32Vec;

// Centred levels c - L / 2 by the bits of a word.
template <int kBits>
class Levels {
 public:
  static constexpr float kCentre = static_cast<float>((1 << kBits) - 1) / 2;
  // Of the two lowest codes of each word, which are shifted out.
  HWY_INLINE void TakeTwo(U32Vec& words, F32Vec& first, F32Vec& second) const {
    first = table_.Lowest(words);
    second = table_.SecondLowest(words);
    words = hn::ShiftRight<2 * kBits>(words);
  }

 private:
  base::HWY_NAMESPACE::BitLevels<kBits> table_{-kCentre};
};

// f32 scales and centred offsets [64] of one side of a page: x_hat = scale level + offset.
template <int kBits>
void LoadGrids(const std::byte* page, KvSide side, int d, float* HWY_RESTRICT scales, float* HWY_RESTRICT offsets) {
  using Layout = PageLayout<kBits>;
  const F32Tag df;
  const hn::Rebind<hwy::float16_t, F32Tag> d16;
  const auto* scale_bits = reinterpret_cast<const hwy::float16_t*>(page + Layout::ScalesStart(side, d));
  const auto* offset_bits = reinterpret_cast<const hwy::float16_t*>(page + Layout::OffsetsStart(side, d));
  for (size_t t = 0; t < kPageTokens; t += kLanes) {
    const F32Vec scale = hn::PromoteTo(df, hn::LoadU(d16, scale_bits + t));
    const F32Vec offset = hn::PromoteTo(df, hn::LoadU(d16, offset_bits + t));
    hn::Store(scale, df, scales + t);
    hn::Store(hn::MulAdd(scale, hn::Set(df, Levels<kBits>::kCentre), offset), df, offsets + t);
  }
}

template <int kBits>
class PageReader {
 public:
  using Layout = PageLayout<kBits>;
  static constexpr bool kHasOffsets = true;
  explicit PageReader(int head_dim) : d_(head_dim) {}

  // Encoded pages are always whole.
  void Open(const std::byte* page, int /*num_tokens*/) {
    LoadGrids<kBits>(page, KvSide::kKey, d_, key_scale_, key_offset_);
    LoadGrids<kBits>(page, KvSide::kValue, d_, value_scale_, value_offset_);
    key_words_ = reinterpret_cast<const uint32_t*>(page + Layout::CodesStart(KvSide::kKey, d_));
    value_words_ = reinterpret_cast<const uint32_t*>(page + Layout::CodesStart(KvSide::kValue, d_));
  }

  template <int kRows>
  HWY_INLINE void Scores(const float* HWY_RESTRICT queries, float* HWY_RESTRICT scores) const {
    constexpr int kVectors = VectorsFor(kRows);
    const int num_words = Layout::ChannelWords(d_);
    const size_t group_stride = static_cast<size_t>(num_words) * kLaneGroup;
    const F32Tag df;
    for (size_t t = 0; t < kPageTokens; t += kVectors * kLanes) {
      F32Vec acc[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(df);
      }
      AddCodes<kernels::kQueryStride>(key_words_, group_stride, t, num_words, queries, acc);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], df, scores + static_cast<size_t>(r) * kernels::kScoreStride + t + v * kLanes);
      }
    }
  }

  // s_t (q . level_t) + a_t Q
  HWY_INLINE F32Vec FinishScore(size_t t, F32Vec score, F32Vec query_sum) const {
    const F32Tag df;
    return hn::MulAdd(score, hn::Load(df, key_scale_ + t), hn::Mul(hn::Load(df, key_offset_ + t), query_sum));
  }
  HWY_INLINE F32Vec SplitWeight(size_t t, F32Vec probability, F32Vec& offset_sum) const {
    const F32Tag df;
    offset_sum = hn::MulAdd(probability, hn::Load(df, value_offset_ + t), offset_sum);
    return hn::Mul(probability, hn::Load(df, value_scale_ + t));
  }

  template <int kRows>
  HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, float* HWY_RESTRICT output) const {
    constexpr int kVectors = VectorsFor(kRows);
    constexpr int kStep = kVectors * static_cast<int>(kLanes);
    int c = 0;
    for (; c + kStep <= d_; c += kStep) AddValueChannels<kRows, kVectors>(c, weights, output);
    for (; c < d_; c += static_cast<int>(kLanes)) AddValueChannels<kRows, 1>(c, weights, output);
  }

  // tile[c 16 + j] = k_(t + j)[c]
  void KeyTile(int t, float* HWY_RESTRICT tile) const {
    const F32Tag df;
    const U32Tag du;
    const Levels<kBits> levels;
    const size_t num_words = static_cast<size_t>(Layout::ChannelWords(d_));
    const uint32_t* HWY_RESTRICT words = key_words_ + static_cast<size_t>(t / kLaneGroup) * num_words * kLaneGroup;
    for (size_t lane = 0; lane < kernels::kTileTokens; lane += kLanes) {
      const F32Vec scale = hn::Load(df, key_scale_ + static_cast<size_t>(t) + lane);
      const F32Vec offset = hn::Load(df, key_offset_ + static_cast<size_t>(t) + lane);
      for (size_t w = 0; w < num_words; ++w) {
        U32Vec bits = hn::Load(du, words + w * kLaneGroup + lane);
        float* HWY_RESTRICT to = tile + w * Layout::kCodesPerWord * kernels::kTileTokens + lane;
        for (size_t i = 0; i < Layout::kCodesPerWord; i += 2) {
          F32Vec first, second;
          levels.TakeTwo(bits, first, second);
          hn::Store(hn::MulAdd(first, scale, offset), df, to + i * kernels::kTileTokens);
          hn::Store(hn::MulAdd(second, scale, offset), df, to + (i + 1) * kernels::kTileTokens);
        }
      }
    }
  }

  // tile[j d + c] = v_(t + j)[c]; t is a multiple of 16 and count is 16, as pages are whole.
  void ValueTile(int t, int count, float* HWY_RESTRICT tile) const {
    const F32Tag df;
    const U32Tag du;
    const Levels<kBits> levels;
    const size_t d = static_cast<size_t>(d_);
    for (size_t c = 0; c < d; c += kLanes) {
      for (int j = 0; j < count;) {
        U32Vec bits = hn::ShiftRightSame(hn::Load(du, value_words_ + Layout::ValueWord(t + j, static_cast<int>(c))), Layout::ValueShift(t + j));
        for (int in_word = (t + j) % Layout::kCodesPerWord; in_word < Layout::kCodesPerWord && j < count; in_word += 2, j += 2) {
          F32Vec level[2];
          levels.TakeTwo(bits, level[0], level[1]);
          for (int k = 0; k < 2; ++k) {
            const F32Vec scale = hn::Set(df, value_scale_[t + j + k]), offset = hn::Set(df, value_offset_[t + j + k]);
            hn::StoreU(hn::MulAdd(level[k], scale, offset), df, tile + static_cast<size_t>(j + k) * d + c);
          }
        }
      }
    }
  }

 private:
  // Vectors of lanes beside kRows rows: as many as the registers hold, so that a broadcast coefficient is used more than once.
  static constexpr int VectorsFor(int rows) {
    if (kLanes == 1) return 1;
    if (kLanes == 4) return rows <= 2 ? 4 : 2;
    if (kManyRegisters) return rows <= 4 ? 4 : 2;
    return 2;
  }

  template <int kRows, int kVectors>
  HWY_INLINE void AddValueChannels(int c, const float* HWY_RESTRICT weights, float* HWY_RESTRICT output) const {
    const F32Tag df;
    const size_t d = static_cast<size_t>(d_);
    float* HWY_RESTRICT out = output + c;
    F32Vec acc[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::LoadU(df, out + static_cast<size_t>(r) * d + v * kLanes);
    }
    AddCodes<kernels::kScoreStride>(value_words_, Layout::kTokenWords * kLaneGroup, static_cast<size_t>(c), Layout::kTokenWords,
                                    weights, acc);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], df, out + static_cast<size_t>(r) * d + v * kLanes);
    }
  }

  // acc[r][v] += sum over codes i of coefficients[r kStride + i] level_i, for the lanes first, first + 1, ... of groups of 16.
  template <size_t kStride, int kRows, int kVectors>
  static HWY_INLINE void AddCodes(const uint32_t* HWY_RESTRICT words, size_t group_stride, size_t first, int num_words,
                                  const float* HWY_RESTRICT coefficients, F32Vec (&acc)[kRows][kVectors]) {
    const F32Tag df;
    const U32Tag du;
    const Levels<kBits> levels;
    const uint32_t* HWY_RESTRICT from[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const size_t lane = first + v * kLanes;
      from[v] = words + lane / kLaneGroup * group_stride + lane % kLaneGroup;
    }
    for (int w = 0; w < num_words; ++w) {
      U32Vec bits[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) bits[v] = hn::Load(du, from[v] + static_cast<size_t>(w) * kLaneGroup);
      const float* HWY_RESTRICT at = coefficients + static_cast<size_t>(w) * Layout::kCodesPerWord;
#pragma GCC unroll 16
      for (int i = 0; i < Layout::kCodesPerWord; i += 2) {
        F32Vec level[2][kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) levels.TakeTwo(bits[v], level[0][v], level[1][v]);
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const F32Vec coefficient = hn::Set(df, at[static_cast<size_t>(r) * kStride + static_cast<size_t>(i + k)]);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(coefficient, level[k][v], acc[r][v]);
          }
        }
      }
    }
  }

  int d_;
  const uint32_t* key_words_ = nullptr;
  const uint32_t* value_words_ = nullptr;
  alignas(64) float key_scale_[kPageTokens];
  alignas(64) float key_offset_[kPageTokens];
  alignas(64) float value_scale_[kPageTokens];
  alignas(64) float value_offset_[kPageTokens];
};

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#endif
