// Attention over encoded pages in whole numbers, for decode and prefill alike: queries and weights become numbers of 16 bits, split in a high and a
// low signed byte, and meet the codes, unsigned bytes, in byte dot products. No code ever becomes a float. A word of codes
// (layout.h) gives each lane four codes per shift and mask, which is the operand of one dot product.
//
//   score(t)  = scale_t step_r (sum_c n_rc code_tc - centre sum_c n_rc) + offset_t sum_c q_rc      n_r = round(q_r / step_r)
//   out(c)   += 2^(page max - max) step (sum_t m_rt code_tc - centre sum_t m_rt) + offsets         m_rt = round(p_rt scale_t / step)
//
// with p relative to the largest score of row and page, so that the step of the weights, max scale_t / 32639, is known before
// them. Rounding errors are at most half a step: 2^-16 of the largest component of a query, 2^-16 of the largest weight of a
// page. The sums are exact. README.md has the error budget.
#if defined(OSCAR_SRC_KV_CODEC_AFFINE_BYTE_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_CODEC_AFFINE_BYTE_ATTENTION_INL_H_
#undef OSCAR_SRC_KV_CODEC_AFFINE_BYTE_ATTENTION_INL_H_
#else
#define OSCAR_SRC_KV_CODEC_AFFINE_BYTE_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/cache_control.h"
#include "src/base/byte_dot-inl.h"
#include "src/base/simd_extra-inl.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/codec/affine/tile-inl.h"
#include "src/kv/kernels/cpu/row_blocks-inl.h"
#include "src/kv/kernels/params.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {
#if OSCAR_TARGET_HAS_BYTE_DOTS
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::Exp2NonPositive;
using base::HWY_NAMESPACE::I32Tag;
using base::HWY_NAMESPACE::I32Vec;
using base::HWY_NAMESPACE::ReduceRows;

// The largest number whose high byte, rounded, is at most 127.
inline constexpr int kLargestNumber = 127 * 256 + 127;

// Numbers of 16 bits into signed bytes of their own, in the order in which codes lie in the dot products: coefficient q of a word
// holds the numbers q, q + Q, q + 2 Q and q + 3 Q of it, Q = 8 / bits.
template <int kBits>
class NumberBytes {
 public:
  static constexpr size_t kStep = kBits == 1 ? 32 : 16;  // numbers that are stored at a time
  static constexpr size_t kVectors = kStep / kLanes;

  HWY_INLINE void Store(const I32Vec (&numbers)[kVectors], int32_t* HWY_RESTRICT high, int32_t* HWY_RESTRICT low) const {
    const I32Tag di;
    I32Vec upper[kVectors], lower[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      upper[v] = hn::ShiftRight<8>(hn::Add(numbers[v], hn::Set(di, 128)));
      lower[v] = hn::Sub(numbers[v], hn::ShiftLeft<8>(upper[v]));
    }
    StoreBytes(upper, reinterpret_cast<uint8_t*>(high));
    StoreBytes(lower, reinterpret_cast<uint8_t*>(low));
  }

  // All numbers of a page.
  HWY_INLINE void StorePage(const I32Vec (&numbers)[kPageTokens / kLanes], int32_t* HWY_RESTRICT high, int32_t* HWY_RESTRICT low) const {
#if HWY_TARGET == HWY_AVX3
    // Packing leaves tokens 16 m + 4 k .. 16 m + 4 k + 3 in 32-bit lane m of 128-bit block k.
    const __m512i first = _mm512_packs_epi32(numbers[0].raw, numbers[1].raw), second = _mm512_packs_epi32(numbers[2].raw, numbers[3].raw);
    const __m512i half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
    const __m512i upper = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(first, half), 8),
                                             _mm512_srai_epi16(_mm512_add_epi16(second, half), 8));
    const __m512i lower = _mm512_packus_epi16(_mm512_and_si512(first, byte), _mm512_and_si512(second, byte));
    const __m512i order = _mm512_broadcast_i32x4(page_order_.raw);
    _mm512_store_si512(high, _mm512_shuffle_epi8(_mm512_permutexvar_epi32(page_groups_, upper), order));
    _mm512_store_si512(low, _mm512_shuffle_epi8(_mm512_permutexvar_epi32(page_groups_, lower), order));
#else
    for (size_t t = 0; t < kPageTokens; t += kStep) {
      I32Vec step[kVectors];
      for (size_t v = 0; v < kVectors; ++v) step[v] = numbers[t / kLanes + v];
      Store(step, high + t / 4, low + t / 4);
    }
#endif
  }

 private:
  using ByteTag = hn::FixedTag<uint8_t, 16>;
  using ByteVec = hn::Vec<ByteTag>;

  // 16 numbers that fit a byte.
  static HWY_INLINE ByteVec Narrow(const I32Vec* numbers) {
    const hn::Rebind<int8_t, I32Tag> d8;
#if HWY_TARGET == HWY_AVX3
    return hn::BitCast(ByteTag(), hn::DemoteTo(d8, numbers[0]));
#elif HWY_TARGET == HWY_AVX2
    return hn::BitCast(ByteTag(), hn::Combine(hn::FixedTag<int8_t, 16>(), hn::DemoteTo(d8, numbers[1]), hn::DemoteTo(d8, numbers[0])));
#else
    const hn::FixedTag<int8_t, 8> half;
    const auto lower = hn::Combine(half, hn::DemoteTo(d8, numbers[1]), hn::DemoteTo(d8, numbers[0]));
    const auto upper = hn::Combine(half, hn::DemoteTo(d8, numbers[3]), hn::DemoteTo(d8, numbers[2]));
    return hn::BitCast(ByteTag(), hn::Combine(hn::FixedTag<int8_t, 16>(), upper, lower));
#endif
  }
  HWY_INLINE void StoreBytes(const I32Vec (&numbers)[kVectors], uint8_t* HWY_RESTRICT to) const {
    const ByteTag d8;
    if constexpr (kBits == 1) {
      // Numbers 0..7 beside 8..15 in pairs, 16..23 beside 24..31 in pairs, then pairs beside pairs.
      const hn::Repartition<uint16_t, ByteTag> d16;
      const auto first = hn::BitCast(d16, hn::TableLookupBytes(Narrow(numbers), order_));
      const auto second = hn::BitCast(d16, hn::TableLookupBytes(Narrow(numbers + kVectors / 2), order_));
      hn::Store(hn::BitCast(d8, hn::InterleaveLower(d16, first, second)), d8, to);
      hn::Store(hn::BitCast(d8, hn::InterleaveUpper(d16, first, second)), d8, to + 16);
    } else {
      hn::Store(hn::TableLookupBytes(Narrow(numbers), order_), d8, to);
    }
  }

  // Of 16 bytes: two rows of eight become pairs, four rows of four become columns, twice four pairs come apart.
  enum Order { kPairs, kColumns, kApart };
  static ByteVec Load(Order order) {
    HWY_ALIGN static constexpr uint8_t kOrders[3][16] = {{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15},
                                                         {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15},
                                                         {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15}};
    return hn::Load(ByteTag(), kOrders[order]);
  }
  const ByteVec order_ = Load(kBits == 1 ? kPairs : kBits == 2 ? kColumns : kApart);
#if HWY_TARGET == HWY_AVX3
  // Where four tokens in a row lie after packing, for the 128-bit blocks of the result: those of a word, in order, or with 1 bit
  // every other group of four of the 32 tokens of a word.
  static __m512i PageGroups() {
    HWY_ALIGN int32_t groups[16];
    for (int i = 0; i < 16; ++i) {
      const int group = kBits == 1 ? i / 8 * 8 + i % 4 * 2 + i / 4 % 2 : i;
      groups[i] = group % 4 * 4 + group / 4;
    }
    return _mm512_load_si512(groups);
  }
  const __m512i page_groups_ = PageGroups();
  const ByteVec page_order_ = Load(kBits == 4 ? kApart : kColumns);
#endif
};

// The counterpart of kernels' DecodePart and PrefillPart: rows in blocks, each through a whole page while its scores and weights lie
// in L1. kInstruction: the processor has one for dot products of bytes (cpu_features.h).
template <int kBits, bool kInstruction>
class ByteAttentionPart {
 public:
  explicit ByteAttentionPart(const kernels::AttendPartParams& params) : params_(params), d_(static_cast<size_t>(params.head_dim)) {
    if (params.runs.num_pages[0] > 0) PrefetchNext(0);
    PrefetchRest();  // while the queries are made ready
    std::fill_n(max_, kMaxRows + kLanes, -std::numeric_limits<float>::infinity());
    for (size_t r = 0; r < NumRows(); ++r) {
      TakeQuery(r);
      std::fill_n(sum_ + r * kLanes, kLanes, 0.0f);
      std::fill_n(offset_sum_ + r * kLanes, kLanes, 0.0f);
    }
    std::fill_n(params.sums.output, NumRows() * d_, 0.0f);
  }

  void Run() {
    const int num_pages = params_.runs.num_pages[0];
    for (int i = 0; i < num_pages; ++i) {
      if (i + 1 < num_pages) PrefetchNext(i + 1);
      AddPage(i);
      PrefetchRest();
    }
    Finish();
  }

 private:
  using Layout = PageLayout<kBits>;
  static constexpr int kQuads = 8 / kBits;  // dot products of a word
  static constexpr float kCentre = Levels<kBits>::kCentre;
  static constexpr size_t kQueryStride = kernels::kMaxHeadDim / 4;
  static constexpr size_t kWeightStride = kPageTokens / 4;
  static constexpr size_t kMaxRows = kernels::kMaxTileRows;
  static constexpr size_t kPrefetchLines = 8;  // between two steps of a page
  static constexpr int kBlockRows = HWY_MIN(kernels::HWY_NAMESPACE::kMaxRowBlock, static_cast<int>(kLanes));  // a number of each row in one vector

  // Vectors of lanes beside kRows rows: few rows need more of them, to hide the latency of the dot products.
  static constexpr int VectorsFor(int rows) {
    if (!base::HWY_NAMESPACE::kManyRegisters) return 1;
    if (rows <= 2) return kBits == 1 ? 2 : 4;
    return kBits == 1 ? 1 : 2;
  }

  // One page for a block of rows.
  struct AddPageToRows {
    ByteAttentionPart* part;
    int page;
    template <int kRows>
    HWY_INLINE void Run(int first) const {
      const size_t first_row = static_cast<size_t>(first);
      part->template Scores<kRows>(first_row);
      part->template WeighRows<kRows>(first_row, page);
      part->template AddValues<kRows>(first_row);
    }
  };

  size_t NumRows() const { return static_cast<size_t>(params_.num_rows); }
  const std::byte* Page(int i) const { return params_.pages + static_cast<size_t>(params_.runs.ids[0][i]) * params_.page_stride; }

  // The next page comes a few lines at a time between the steps of a page: all at once they would hold up the loads of this page.
  void PrefetchNext(int page) {
    prefetch_ = Page(page);
    prefetch_end_ = prefetch_ + Layout::PageBytes(params_.head_dim);
  }
  HWY_INLINE void PrefetchLines(size_t count) {
    for (size_t i = 0; i < count && prefetch_ < prefetch_end_; ++i, prefetch_ += 64) hwy::Prefetch(prefetch_);
  }
  void PrefetchRest() { PrefetchLines(static_cast<size_t>(prefetch_end_ - prefetch_) / 64); }

  void TakeQuery(size_t r) {
    const F32Tag df;
    const hn::CappedTag<double, 8> d64;
    const hn::Rebind<float, decltype(d64)> half;
    const float* HWY_RESTRICT query = params_.queries.Row(static_cast<int>(r));
    F32Vec largest = hn::Zero(df);
    auto sum = hn::Zero(d64);  // it multiplies offsets, which may be far larger than the spread of a row
    for (size_t c = 0; c < d_; c += kLanes) largest = hn::Max(largest, hn::Abs(hn::LoadU(df, query + c)));
    for (size_t c = 0; c < d_; c += hn::Lanes(d64)) sum = hn::Add(sum, hn::PromoteTo(d64, hn::LoadU(half, query + c)));
    query_sum_[r] = static_cast<float>(hn::GetLane(hn::SumOfLanes(d64, sum)) * static_cast<double>(params_.scale_log2));
    const float peak = hn::GetLane(hn::MaxOfLanes(df, largest));
    const F32Vec reciprocal = hn::Set(df, peak > 0.0f ? static_cast<float>(kLargestNumber) / peak : 0.0f);
    query_step_[r] = peak / static_cast<float>(kLargestNumber) * params_.scale_log2;
    const I32Tag di;
    I32Vec total = hn::Zero(di);
    for (size_t c = 0; c < d_; c += NumberBytes<kBits>::kStep) {
      I32Vec numbers[NumberBytes<kBits>::kVectors];
      for (size_t v = 0; v < NumberBytes<kBits>::kVectors; ++v) {
        numbers[v] = hn::NearestInt(hn::Mul(hn::LoadU(df, query + c + v * kLanes), reciprocal));
        total = hn::Add(total, numbers[v]);
      }
      bytes_.Store(numbers, query_high_ + r * kQueryStride + c / 4, query_low_ + r * kQueryStride + c / 4);
    }
    query_centre_[r] = kCentre * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, total)));
  }

  void AddPage(int i) {
    const std::byte* page = Page(i);
    const int d = params_.head_dim;
    LoadGrids<kBits>(page, KvSide::kKey, d, key_scale_, key_offset_);
    LoadGrids<kBits>(page, KvSide::kValue, d, value_scale_, value_offset_);
    key_words_ = reinterpret_cast<const uint32_t*>(page + Layout::CodesStart(KvSide::kKey, d));
    value_words_ = reinterpret_cast<const uint32_t*>(page + Layout::CodesStart(KvSide::kValue, d));
    NormaliseValueScales();
    kernels::HWY_NAMESPACE::ForRowBlocks<kBlockRows>(params_.num_rows, AddPageToRows{this, i});
  }

  // Lane r: the constant of row first_row + r and the page that a turning key mean gives (page_term-inl.h).
  template <size_t kRows>
  HWY_INLINE F32Vec PageTerms(size_t first_row, int page) const {
    const F32Tag df;
    if (params_.mean_terms == nullptr) return hn::Zero(df);
    const float* HWY_RESTRICT terms = params_.mean_terms + first_row * d_;
    const float* HWY_RESTRICT phases = params_.page_phases + static_cast<size_t>(page) * d_;
    F32Vec sums[kRows];
    for (size_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(df);
    for (size_t c = 0; c < d_; c += kLanes) {
      const F32Vec phase = hn::LoadU(df, phases + c);
      for (size_t r = 0; r < kRows; ++r) sums[r] = hn::MulAdd(hn::LoadU(df, terms + r * d_ + c), phase, sums[r]);
    }
    return ReduceRows(sums, [](F32Vec a, F32Vec b) HWY_ATTR { return hn::Add(a, b); });
  }

  // value_scale_ in steps of its largest magnitude / kLargestNumber.
  void NormaliseValueScales() {
    const F32Tag df;
    F32Vec largest = hn::Zero(df);
    for (size_t t = 0; t < kPageTokens; t += kLanes) largest = hn::Max(largest, hn::Abs(hn::Load(df, value_scale_ + t)));
    const float peak = hn::GetLane(hn::MaxOfLanes(df, largest));
    weight_step_ = peak / static_cast<float>(kLargestNumber);
    const F32Vec reciprocal = hn::Set(df, peak > 0.0f ? static_cast<float>(kLargestNumber) / peak : 0.0f);
    for (size_t t = 0; t < kPageTokens; t += kLanes) hn::Store(hn::Mul(hn::Load(df, value_scale_ + t), reciprocal), df, value_scale_ + t);
  }

  // sums[r][v] += sum over the codes of `num_words` words times the bytes of row r.
  template <size_t kStride, int kRows, int kVectors>
  static HWY_INLINE void AddWords(const uint32_t* HWY_RESTRICT const (&from)[kVectors], int num_words,
                                  const int32_t* HWY_RESTRICT coefficients, I32Vec (&sums)[kRows][kVectors]) {
    const U32Tag du;
    const U32Vec mask = hn::Set(du, 0x01010101u * ((1u << kBits) - 1));
    for (int w = 0; w < num_words; ++w) {
      U32Vec quads[kQuads][kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        U32Vec bits = hn::Load(du, from[v] + static_cast<size_t>(w) * kLaneGroup);
#pragma GCC unroll 8
        for (int q = 0; q < kQuads; ++q) {
          quads[q][v] = hn::And(bits, mask);
          bits = hn::ShiftRight<kBits>(bits);
        }
      }
      const int32_t* HWY_RESTRICT at = coefficients + w * kQuads;
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) base::HWY_NAMESPACE::AddQuadDots<kInstruction>(quads, at + r * kStride, sums[r]);
    }
  }
  // Sums with numbers of 16 bits, exact: (sum of high bytes) 256 + sum of low bytes.
  template <size_t kStride, int kRows, int kVectors>
  static HWY_INLINE void SumWords(const uint32_t* HWY_RESTRICT const (&from)[kVectors], int num_words,
                                  const int32_t* HWY_RESTRICT high, const int32_t* HWY_RESTRICT low, I32Vec (&sums)[kRows][kVectors]) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(I32Tag());
    }
    AddWords<kStride>(from, num_words, high, sums);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::ShiftLeft<8>(sums[r][v]);
    }
    AddWords<kStride>(from, num_words, low, sums);
  }

  template <int kRows>
  HWY_INLINE void Scores(size_t first_row) {
    constexpr int kVectors = VectorsFor(kRows);
    const int num_words = Layout::ChannelWords(params_.head_dim);
    for (size_t t = 0; t < kPageTokens; t += kVectors * kLanes) {
      const uint32_t* HWY_RESTRICT from[kVectors];
      for (size_t v = 0; v < kVectors; ++v) {
        const size_t token = t + v * kLanes;
        from[v] = key_words_ + token / kLaneGroup * static_cast<size_t>(num_words) * kLaneGroup + token % kLaneGroup;
      }
      I32Vec sums[kRows][kVectors];
      PrefetchLines(kPrefetchLines);
      SumWords<kQueryStride>(from, num_words, query_high_ + first_row * kQueryStride, query_low_ + first_row * kQueryStride, sums);
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[r][v], I32Tag(), score_sums_ + r * kPageTokens + t + v * kLanes);
      }
    }
  }

  template <int kRows>
  HWY_INLINE void AddValues(size_t first_row) {
    constexpr size_t kVectors = VectorsFor(kRows);
    size_t c = 0;
    for (; c + kVectors * kLanes <= d_; c += kVectors * kLanes) AddValueChannels<kRows, kVectors>(first_row, c);
    for (; c < d_; c += kLanes) AddValueChannels<kRows, 1>(first_row, c);
  }
  template <int kRows, int kVectors>
  HWY_INLINE void AddValueChannels(size_t first_row, size_t c) {
    const F32Tag df;
    const uint32_t* HWY_RESTRICT from[kVectors];
    for (size_t v = 0; v < kVectors; ++v) from[v] = value_words_ + Layout::ValueWord(0, static_cast<int>(c + v * kLanes));
    I32Vec sums[kRows][kVectors];
    PrefetchLines(kPrefetchLines);
    SumWords<kWeightStride>(from, Layout::kTokenWords, weight_high_, weight_low_, sums);
    for (size_t r = 0; r < kRows; ++r) {
      float* HWY_RESTRICT out = params_.sums.output + (first_row + r) * d_ + c;
      const F32Vec step = hn::Set(df, weight_steps_[r]), centre = hn::Set(df, weight_centres_[r]);
      for (size_t v = 0; v < kVectors; ++v) {
        const F32Vec levels = hn::Sub(hn::ConvertTo(df, sums[r][v]), centre);  // page by page: sums of codes would grow, their centre with them
        hn::StoreU(hn::MulAdd(levels, step, hn::LoadU(df, out + v * kLanes)), df, out + v * kLanes);
      }
    }
  }

  // The sums of a block of rows and a page become scores, then numbers for its weights; the rows' running maxima and sums follow.
  // All rows go through each step together: what reduces the lanes of a row, and what is one number per row, costs a few instructions for all.
  template <size_t kRows>
  HWY_INLINE void WeighRows(size_t first_row, int page) {
    const F32Tag df;
    HWY_ALIGN float term[kLanes], shrink[kLanes], factor[kLanes], page_max[kLanes], row_max[kLanes];
    hn::Store(PageTerms<kRows>(first_row, page), df, term);
    F32Vec highest[kRows];
    for (size_t r = 0; r < kRows; ++r) highest[r] = ScoreRow(first_row + r, r, term[r]);
    const F32Vec of_page = ReduceRows(highest, [](F32Vec a, F32Vec b) HWY_ATTR { return hn::Max(a, b); });
    const F32Vec before = hn::LoadU(df, max_ + first_row), now = hn::Max(before, of_page);
    hn::Store(of_page, df, page_max);
    hn::Store(now, df, row_max);
    hn::Store(Exp2NonPositive(hn::Sub(before, now)), df, shrink);
    const F32Vec weight = Exp2NonPositive(hn::Sub(of_page, now));
    hn::Store(weight, df, factor);
    hn::Store(hn::Mul(weight, hn::Set(df, weight_step_)), df, weight_steps_);
    F32Vec totals[kRows];  // whole numbers below 2^24, whatever the order of their sums
    for (size_t r = 0; r < kRows; ++r) {
      max_[first_row + r] = row_max[r];
      if (shrink[r] != 1.0f) ShrinkRow(first_row + r, shrink[r]);
      PrefetchLines(kPrefetchLines);
      totals[r] = AddWeights(first_row + r, r, page_max[r], factor[r]);
    }
    const F32Vec total = ReduceRows(totals, [](F32Vec a, F32Vec b) HWY_ATTR { return hn::Add(a, b); });
    hn::Store(hn::Mul(total, hn::Set(df, kCentre)), df, weight_centres_);
  }

  // Scores of row `in_block` of the block, in place of their sums. Returns the largest of every lane.
  HWY_INLINE F32Vec ScoreRow(size_t r, size_t in_block, float page_term) {
    const F32Tag df;
    int32_t* HWY_RESTRICT sums = score_sums_ + in_block * kPageTokens;
    const F32Vec step = hn::Set(df, query_step_[r]), centre = hn::Set(df, query_centre_[r] * query_step_[r]);
    const F32Vec query_sum = hn::Set(df, query_sum_[r]), term = hn::Set(df, page_term);
    F32Vec highest = hn::Set(df, -std::numeric_limits<float>::infinity());
#pragma GCC unroll 8
    for (size_t t = 0; t < kPageTokens; t += kLanes) {
      const F32Vec level = hn::MulSub(hn::ConvertTo(df, hn::Load(I32Tag(), sums + t)), step, centre);
      const F32Vec score = hn::MulAdd(level, hn::Load(df, key_scale_ + t), hn::MulAdd(query_sum, hn::Load(df, key_offset_ + t), term));
      hn::Store(hn::BitCast(I32Tag(), score), I32Tag(), sums + t);
      highest = hn::Max(highest, score);
    }
    return highest;
  }

  // A larger maximum: what has been summed weighs less.
  void ShrinkRow(size_t r, float shrink) {
    const F32Tag df;
    const F32Vec factor = hn::Set(df, shrink);
    float* HWY_RESTRICT output = params_.sums.output + r * d_;
    for (size_t c = 0; c < d_; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(df, output + c), factor), df, output + c);
    hn::Store(hn::Mul(hn::Load(df, sum_ + r * kLanes), factor), df, sum_ + r * kLanes);
    hn::Store(hn::Mul(hn::Load(df, offset_sum_ + r * kLanes), factor), df, offset_sum_ + r * kLanes);
  }

  // Returns the numbers of the row, summed lane by lane.
  HWY_INLINE F32Vec AddWeights(size_t r, size_t in_block, float page_max, float page_factor) {
    const F32Tag df;
    const int32_t* HWY_RESTRICT scores = score_sums_ + in_block * kPageTokens;
    const F32Vec highest = hn::Set(df, page_max), factor = hn::Set(df, page_factor);
    F32Vec sum = hn::Zero(df), offset_sum = hn::Zero(df);
    I32Vec numbers[kPageTokens / kLanes], total = hn::Zero(I32Tag());
#pragma GCC unroll 8
    for (size_t v = 0; v < kPageTokens / kLanes; ++v) {
      const size_t at = v * kLanes;
      const F32Vec p = Exp2NonPositive(hn::Sub(hn::BitCast(df, hn::Load(I32Tag(), scores + at)), highest));
      sum = hn::Add(sum, p);
      offset_sum = hn::MulAdd(p, hn::Load(df, value_offset_ + at), offset_sum);
      numbers[v] = hn::NearestInt(hn::Mul(p, hn::Load(df, value_scale_ + at)));
      total = hn::Add(total, numbers[v]);
    }
    bytes_.StorePage(numbers, weight_high_ + in_block * kWeightStride, weight_low_ + in_block * kWeightStride);
    float* HWY_RESTRICT sums = sum_ + r * kLanes;
    float* HWY_RESTRICT offset_sums = offset_sum_ + r * kLanes;
    hn::Store(hn::MulAdd(sum, factor, hn::Load(df, sums)), df, sums);
    hn::Store(hn::MulAdd(offset_sum, factor, hn::Load(df, offset_sums)), df, offset_sums);
    return hn::ConvertTo(df, total);
  }

  void Finish() {
    const F32Tag df;
    for (size_t r = 0; r < NumRows(); ++r) {
      params_.sums.max[r] = max_[r];
      params_.sums.sum[r] = hn::GetLane(hn::SumOfLanes(df, hn::Load(df, sum_ + r * kLanes)));
      const F32Vec offset = hn::SumOfLanes(df, hn::Load(df, offset_sum_ + r * kLanes));
      float* HWY_RESTRICT output = params_.sums.output + r * d_;
      for (size_t c = 0; c < d_; c += kLanes) hn::StoreU(hn::Add(hn::LoadU(df, output + c), offset), df, output + c);
    }
  }

  const kernels::AttendPartParams& params_;
  const size_t d_;
  const NumberBytes<kBits> bytes_;
  const std::byte* prefetch_ = nullptr;
  const std::byte* prefetch_end_ = nullptr;
  const uint32_t* key_words_ = nullptr;
  const uint32_t* value_words_ = nullptr;
  alignas(64) float key_scale_[kPageTokens];
  alignas(64) float key_offset_[kPageTokens];
  alignas(64) float value_scale_[kPageTokens];  // in steps
  alignas(64) float value_offset_[kPageTokens];
  alignas(64) int32_t query_high_[kMaxRows * kQueryStride];  // four signed bytes each
  alignas(64) int32_t query_low_[kMaxRows * kQueryStride];
  alignas(64) int32_t weight_high_[kBlockRows * kWeightStride];
  alignas(64) int32_t weight_low_[kBlockRows * kWeightStride];
  alignas(64) int32_t score_sums_[kBlockRows * kPageTokens];
  alignas(64) float sum_[kMaxRows * kLanes];
  alignas(64) float offset_sum_[kMaxRows * kLanes];
  float query_sum_[kMaxRows], query_step_[kMaxRows], query_centre_[kMaxRows];
  alignas(64) float weight_steps_[HWY_MAX(size_t{kBlockRows}, kLanes)];
  alignas(64) float weight_centres_[HWY_MAX(size_t{kBlockRows}, kLanes)];
  float max_[kMaxRows + kLanes];  // a block of rows is read as a whole vector
  float weight_step_ = 0;
};

#endif  // OSCAR_TARGET_HAS_BYTE_DOTS
}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#endif
