// BF16 pages read for attention. Keys are transposed in registers, two channels a word, so that tokens lie in the lanes as in
// the encoded pages; values need no transposition.
#if defined(OSCAR_SRC_KV_CODEC_BF16_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_CODEC_BF16_TILE_INL_H_
#undef OSCAR_SRC_KV_CODEC_BF16_TILE_INL_H_
#else
#define OSCAR_SRC_KV_CODEC_BF16_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/base/simd_extra-inl.h"
#include "src/kv/kernels/concepts.h"
#include "src/kv/kernels/params.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::bf16 {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32FromBf16Lanes;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;
using base::HWY_NAMESPACE::kManyRegisters;
using base::HWY_NAMESPACE::U32Tag;
using base::HWY_NAMESPACE::U32Vec;

// The two channels of a word of bf16.
HWY_INLINE F32Vec EvenChannel(U32Vec words) { return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(words)); }
HWY_INLINE F32Vec OddChannel(U32Vec words) { return hn::BitCast(F32Tag(), hn::And(words, hn::Set(U32Tag(), 0xFFFF0000u))); }

class PageReader {
 public:
  static constexpr bool kHasOffsets = false;
  explicit PageReader(int head_dim) : d_(static_cast<size_t>(head_dim)) {}

  // Slots from num_tokens on may hold anything and are never read.
  void Open(const std::byte* page, int num_tokens) {
    keys_ = reinterpret_cast<const uint16_t*>(page + kernels::Bf16SideStart(KvSide::kKey, static_cast<int>(d_)));
    values_ = reinterpret_cast<const uint16_t*>(page + kernels::Bf16SideStart(KvSide::kValue, static_cast<int>(d_)));
    num_tokens_ = num_tokens;
  }

  template <int kRows>
  HWY_INLINE void Scores(const float* HWY_RESTRICT queries, float* HWY_RESTRICT scores) const {
    for (size_t t = 0; t < static_cast<size_t>(num_tokens_); t += kLanes) {
      HWY_ALIGN uint16_t copy[kLanes * kernels::kMaxHeadDim];
      ScoreLanes<kRows>(WholeRows(t, kLanes, copy), queries, scores + t);
    }
  }
  HWY_INLINE F32Vec FinishScore(size_t /*t*/, F32Vec score, F32Vec /*query_sum*/) const { return score; }
  HWY_INLINE F32Vec SplitWeight(size_t /*t*/, F32Vec probability, F32Vec& /*offset_sum*/) const { return probability; }

  template <int kRows>
  HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, float* HWY_RESTRICT output) const {
    constexpr int kVectors = kLanes == 1 ? 1 : (kManyRegisters && kRows <= 4 ? 4 : 2);
    size_t c = 0;
    for (; c + kVectors * kLanes <= d_; c += kVectors * kLanes) AddValueChannels<kRows, kVectors>(c, weights, output);
    for (; c < d_; c += kLanes) AddValueChannels<kRows, 1>(c, weights, output);
  }

  // Rows past the last token repeat it.
  void KeyTile(int t, float* HWY_RESTRICT tile) const {
    const F32Tag df;
    for (size_t lane = 0; lane < kernels::kTileTokens; lane += kLanes) {
      HWY_ALIGN uint16_t copy[kLanes * kernels::kMaxHeadDim];
      const uint16_t* rows = WholeRows(static_cast<size_t>(t) + lane, kLanes, copy);
      for (size_t c = 0; c < d_; c += 8) {
        U32Vec words[4];
        LoadChannelPairs(rows + c, words);
        for (size_t k = 0; k < 4; ++k) {
          hn::StoreU(EvenChannel(words[k]), df, tile + (c + 2 * k) * kernels::kTileTokens + lane);
          hn::StoreU(OddChannel(words[k]), df, tile + (c + 2 * k + 1) * kernels::kTileTokens + lane);
        }
      }
    }
  }

  void ValueTile(int t, int count, float* HWY_RESTRICT tile) const {
    const uint16_t* HWY_RESTRICT from = values_ + static_cast<size_t>(t) * d_;
    for (size_t i = 0; i < static_cast<size_t>(count) * d_; i += kLanes) hn::StoreU(F32FromBf16Lanes(from + i), F32Tag(), tile + i);
  }

 private:
  // Key rows t .. t + count - 1, all readable: in place, or copied with the last token repeated when the page ends before.
  const uint16_t* WholeRows(size_t t, size_t count, uint16_t* HWY_RESTRICT copy) const {
    const size_t last = static_cast<size_t>(num_tokens_) - 1;
    if (t + count <= last + 1) return keys_ + t * d_;
    for (size_t j = 0; j < count; ++j) std::copy_n(keys_ + std::min(t + j, last) * d_, d_, copy + j * d_);
    return copy;
  }

  // words[k] lane j = channels 2 k and 2 k + 1 from `first` on of token j.
  HWY_INLINE void LoadChannelPairs(const uint16_t* HWY_RESTRICT first, U32Vec (&words)[4]) const {
    base::HWY_NAMESPACE::TransposeFourWords([&](size_t token) HWY_ATTR { return first + token * d_; }, words);
  }

  template <int kRows>
  HWY_INLINE void ScoreLanes(const uint16_t* HWY_RESTRICT rows, const float* HWY_RESTRICT queries, float* HWY_RESTRICT scores) const {
    const F32Tag df;
    F32Vec even[kRows], odd[kRows];
    for (int r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(df);
    for (size_t c = 0; c < d_; c += 8) {
      U32Vec words[4];
      LoadChannelPairs(rows + c, words);
#pragma GCC unroll 4
      for (size_t k = 0; k < 4; ++k) {
        const F32Vec x_even = EvenChannel(words[k]), x_odd = OddChannel(words[k]);
        const float* HWY_RESTRICT at = queries + c + 2 * k;
#pragma GCC unroll 8
        for (size_t r = 0; r < kRows; ++r) {
          even[r] = hn::MulAdd(hn::Set(df, at[r * kernels::kQueryStride]), x_even, even[r]);
          odd[r] = hn::MulAdd(hn::Set(df, at[r * kernels::kQueryStride + 1]), x_odd, odd[r]);
        }
      }
    }
    for (size_t r = 0; r < kRows; ++r) hn::StoreU(hn::Add(even[r], odd[r]), df, scores + r * kernels::kScoreStride);
  }

  template <int kRows, int kVectors>
  HWY_INLINE void AddValueChannels(size_t c, const float* HWY_RESTRICT weights, float* HWY_RESTRICT output) const {
    const F32Tag df;
    F32Vec acc[kRows][kVectors];
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) acc[r][v] = hn::LoadU(df, output + r * d_ + c + v * kLanes);
    }
    const uint16_t* HWY_RESTRICT from = values_ + c;
    for (size_t t = 0; t < static_cast<size_t>(num_tokens_); ++t, from += d_) {
      F32Vec x[kVectors];
#pragma GCC unroll 8
      for (size_t v = 0; v < kVectors; ++v) x[v] = F32FromBf16Lanes(from + v * kLanes);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const F32Vec weight = hn::Set(df, weights[r * kernels::kScoreStride + t]);
#pragma GCC unroll 8
        for (size_t v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(weight, x[v], acc[r][v]);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], df, output + r * d_ + c + v * kLanes);
    }
  }

  const size_t d_;
  const uint16_t* keys_ = nullptr;    // [64, d]
  const uint16_t* values_ = nullptr;  // [64, d]
  int num_tokens_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace oscar::bf16
HWY_AFTER_NAMESPACE();

#endif
