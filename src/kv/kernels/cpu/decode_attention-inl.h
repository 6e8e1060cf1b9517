// Decode attention over some pages for a few rows (method.md 6.2): online softmax page by page. All query heads of the KV
// head share each loaded page. The codec's reader turns its codes into lanes; nothing here knows a layout.
#if defined(OSCAR_SRC_KV_KERNELS_CPU_DECODE_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_DECODE_ATTENTION_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_DECODE_ATTENTION_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_DECODE_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <limits>

#include "src/base/simd_extra-inl.h"
#include "src/kv/kernels/concepts.h"
#include "src/kv/kernels/cpu/page_term-inl.h"
#include "src/kv/kernels/cpu/row_blocks-inl.h"
#include "src/kv/kernels/params.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::Exp2NonPositive;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;

template <PageReader Reader>
class DecodePart {
 public:
  explicit DecodePart(const AttendPartParams& params) : params_(params), reader_(MakeReader<Reader>(params)) {
    for (int r = 0; r < params.num_rows; ++r) {
      const float* query = params.queries.Row(r);
      float* scaled = queries_ + static_cast<size_t>(r) * kQueryStride;
      double sum = 0;  // it multiplies offsets, which may be far larger than the spread of a row
      for (int c = 0; c < params.head_dim; ++c) {
        scaled[c] = query[c] * params.scale_log2;
        sum += scaled[c];
      }
      query_sum_[r] = static_cast<float>(sum);
      max_[r] = -std::numeric_limits<float>::infinity();
      std::fill_n(sum_ + static_cast<size_t>(r) * kLanes, kLanes, 0.0f);
      std::fill_n(offset_sum_ + static_cast<size_t>(r) * kLanes, kLanes, 0.0f);
    }
    std::fill_n(params.sums.output, static_cast<size_t>(params.num_rows) * static_cast<size_t>(params.head_dim), 0.0f);
  }

  void Run() {
    for (int run = 0; run < 2; ++run) {
      for (int i = 0; i < params_.runs.num_pages[run]; ++i) {
        const bool last = i + 1 == params_.runs.num_pages[run] && (run == 1 || params_.runs.num_pages[1] == 0);
        if (params_.mean_terms != nullptr) SetPageTerms(i);
        AddPage(run, i, last && params_.causal_last_page);
      }
    }
    Finish();
  }

 private:
  struct ScoreRows {
    DecodePart* part;
    template <int kRows>
    HWY_INLINE void Run(int first) const {
      part->reader_.template Scores<kRows>(part->queries_ + static_cast<size_t>(first) * kQueryStride,
                                           part->scores_ + static_cast<size_t>(first) * kScoreStride);
    }
  };
  struct AddRows {
    DecodePart* part;
    template <int kRows>
    HWY_INLINE void Run(int first) const {
      part->reader_.template AddValues<kRows>(
          part->scores_ + static_cast<size_t>(first) * kScoreStride,
          part->params_.sums.output + static_cast<size_t>(first) * static_cast<size_t>(part->params_.head_dim));
    }
  };

  void SetPageTerms(int page) {
    const size_t d = static_cast<size_t>(params_.head_dim);
    for (size_t r = 0; r < static_cast<size_t>(params_.num_rows); ++r) {
      page_term_[r] = PageTerm(params_.mean_terms + r * d, params_.page_phases + static_cast<size_t>(page) * d, d);
    }
  }

  void AddPage(int run, int i, bool causal) {
    const int queries = params_.num_rows / params_.queries.num_inner;
    const int num_tokens = causal ? std::min(params_.last_page_tokens + queries - 1, kPageTokens) : kPageTokens;
    OpenPage(params_, run, i, num_tokens, reader_);
    ForRowBlocks(params_.num_rows, ScoreRows{this});
    for (int r = 0; r < params_.num_rows; ++r) {
      WeighRow(r, causal ? params_.last_page_tokens + r / params_.queries.num_inner : kPageTokens);
    }
    ForRowBlocks(params_.num_rows, AddRows{this});
  }

  // Scores of one row and page become weights of codes; the row's running maximum, sum and output follow.
  void WeighRow(int r, int visible_tokens) {
    const F32Tag d;
    float* HWY_RESTRICT scores = scores_ + static_cast<size_t>(r) * kScoreStride;
    const F32Vec none = hn::Set(d, -std::numeric_limits<float>::infinity());
    const F32Vec query_sum = hn::Set(d, query_sum_[r]), page_term = hn::Set(d, page_term_[r]);
    F32Vec highest = none;
    for (size_t t = 0; t < kPageTokens; t += kLanes) {
      F32Vec score = hn::Add(reader_.FinishScore(t, hn::LoadU(d, scores + t), query_sum), page_term);
      if (static_cast<int>(t + kLanes) > visible_tokens) {
        const F32Vec index = hn::Iota(d, static_cast<float>(t));
        score = hn::IfThenElse(hn::Lt(index, hn::Set(d, static_cast<float>(visible_tokens))), score, none);
      }
      hn::StoreU(score, d, scores + t);
      highest = hn::Max(highest, score);
    }
    const float page_max = hn::GetLane(hn::MaxOfLanes(d, highest));
    F32Vec sum = hn::LoadU(d, sum_ + static_cast<size_t>(r) * kLanes);
    F32Vec offset_sum = hn::LoadU(d, offset_sum_ + static_cast<size_t>(r) * kLanes);
    if (page_max > max_[r]) {
      const F32Vec factor = Exp2NonPositive(hn::Set(d, max_[r] - page_max));
      sum = hn::Mul(sum, factor);
      offset_sum = hn::Mul(offset_sum, factor);
      float* HWY_RESTRICT output = params_.sums.output + static_cast<size_t>(r) * static_cast<size_t>(params_.head_dim);
      for (int c = 0; c < params_.head_dim; c += static_cast<int>(kLanes)) {
        hn::StoreU(hn::Mul(hn::LoadU(d, output + c), factor), d, output + c);
      }
      max_[r] = page_max;
    }
    const F32Vec max = hn::Set(d, max_[r]);
    for (size_t t = 0; t < kPageTokens; t += kLanes) {
      const F32Vec p = Exp2NonPositive(hn::Sub(hn::LoadU(d, scores + t), max));
      sum = hn::Add(sum, p);
      hn::StoreU(reader_.SplitWeight(t, p, offset_sum), d, scores + t);
    }
    hn::StoreU(sum, d, sum_ + static_cast<size_t>(r) * kLanes);
    hn::StoreU(offset_sum, d, offset_sum_ + static_cast<size_t>(r) * kLanes);
  }

  void Finish() {
    const F32Tag d;
    for (int r = 0; r < params_.num_rows; ++r) {
      params_.sums.max[r] = max_[r];
      params_.sums.sum[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, sum_ + static_cast<size_t>(r) * kLanes)));
      if constexpr (Reader::kHasOffsets) {
        const F32Vec offset = hn::SumOfLanes(d, hn::LoadU(d, offset_sum_ + static_cast<size_t>(r) * kLanes));
        float* HWY_RESTRICT output = params_.sums.output + static_cast<size_t>(r) * static_cast<size_t>(params_.head_dim);
        for (int c = 0; c < params_.head_dim; c += static_cast<int>(kLanes)) {
          hn::StoreU(hn::Add(hn::LoadU(d, output + c), offset), d, output + c);
        }
      }
    }
  }

  const AttendPartParams& params_;
  Reader reader_;
  alignas(64) float queries_[kMaxDecodeRows * kQueryStride];
  alignas(64) float scores_[kMaxDecodeRows * kScoreStride];  // then weights
  alignas(64) float sum_[kMaxDecodeRows * kLanes];
  alignas(64) float offset_sum_[kMaxDecodeRows * kLanes];
  float query_sum_[kMaxDecodeRows];
  float page_term_[kMaxDecodeRows] = {};  // constant score of the page's mean
  float max_[kMaxDecodeRows];
};

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
