// Prefill attention over some pages for up to 64 rows: rows lie in the SIMD lanes, so that a tile of 16 tokens of K or V is
// made f32 once (in L1) and broadcast to all of them, and the softmax needs no horizontal operation.
#if defined(OSCAR_SRC_KV_KERNELS_CPU_PREFILL_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_PREFILL_ATTENTION_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_PREFILL_ATTENTION_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_PREFILL_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <limits>

#include "src/base/simd_extra-inl.h"
#include "src/kv/kernels/concepts.h"
#include "src/kv/kernels/cpu/outer_product-inl.h"
#include "src/kv/kernels/cpu/page_term-inl.h"
#include "src/kv/kernels/params.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::Exp2NonPositive;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;
using base::HWY_NAMESPACE::kManyRegisters;

template <PageReader Reader>
class PrefillPart {
 public:
  explicit PrefillPart(const AttendPartParams& params)
      : params_(params), reader_(MakeReader<Reader>(params)), d_(static_cast<size_t>(params.head_dim)) {
    float* scratch = reinterpret_cast<float*>(params.scratch);
    queries_ = scratch;
    output_ = queries_ + d_ * kRowStride;
    scores_ = output_ + d_ * kRowStride;
    tile_ = scores_ + kPageTokens * kRowStride;
    num_lanes_ = (static_cast<size_t>(params.num_rows) + kLanes - 1) / kLanes * kLanes;
    std::fill_n(output_, d_ * kRowStride, 0.0f);
    std::fill_n(max_, kMaxTileRows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_, kMaxTileRows, 0.0f);
    for (int r = 0; r < kMaxTileRows; ++r) {
      visible_[r] = static_cast<float>(params.last_page_tokens + std::min(r, params.num_rows - 1) / params.queries.num_inner);
    }
    for (size_t lane = 0; lane < num_lanes_; lane += kLanes) TransposeQueries(lane);
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
  static constexpr int kCoefficients = 4;
  static constexpr int kVectors = kManyRegisters ? 4 : 2;
  static constexpr size_t kBlockLanes = kVectors * kLanes;

  // kLanes rows of queries into a column of vectors. Lanes past the last row repeat it.
  void TransposeQueries(size_t lane) {
    const F32Tag df;
    const F32Vec scale = hn::Set(df, params_.scale_log2);
    const float* rows[kLanes];
    for (size_t j = 0; j < kLanes; ++j) rows[j] = params_.queries.Row(std::min(static_cast<int>(lane + j), params_.num_rows - 1));
    for (size_t c = 0; c < d_; c += 4) {
      base::HWY_NAMESPACE::U32Vec words[4];
      base::HWY_NAMESPACE::TransposeFourWords([&](size_t j) HWY_ATTR { return rows[j] + c; }, words);
      for (size_t k = 0; k < 4; ++k) hn::Store(hn::Mul(hn::BitCast(df, words[k]), scale), df, queries_ + (c + k) * kRowStride + lane);
    }
  }

  void SetPageTerms(int page) {
    for (size_t r = 0; r < static_cast<size_t>(params_.num_rows); ++r) {
      page_term_[r] = PageTerm(params_.mean_terms + r * d_, params_.page_phases + static_cast<size_t>(page) * d_, d_);
    }
  }

  void AddPage(int run, int i, bool causal) {
    const int queries = params_.num_rows / params_.queries.num_inner;
    const int num_tokens = causal ? std::min(params_.last_page_tokens + queries - 1, kPageTokens) : kPageTokens;
    OpenPage(params_, run, i, num_tokens, reader_);
    for (int t = 0; t < num_tokens; t += kTileTokens) {
      reader_.KeyTile(t, tile_);
      ForLaneBlocks<ScoreTile>(t, kTileTokens, causal);
    }
    for (size_t lane = 0; lane < num_lanes_; lane += kLanes) Weigh(lane, num_tokens, causal);
    for (int t = 0; t < num_tokens; t += kTileTokens) {
      const int count = std::min(kTileTokens, num_tokens - t);
      reader_.ValueTile(t, count, tile_);
      ForLaneBlocks<ValueTile>(t, count, causal);
    }
  }

  // Op::Run<vectors>(part, lane, t, count) over all lanes in use. On a causal page, vectors whose rows see none of the tokens
  // from t on are left out: their scores are masked and their weights zero whatever they would be.
  template <class Op>
  HWY_INLINE void ForLaneBlocks(int t, int count, bool causal) {
    size_t lane = 0;
    if (causal) {
      for (; lane < num_lanes_; lane += kLanes) {
        if (static_cast<float>(t) < visible_[lane + kLanes - 1]) Op::template Run<1>(*this, lane, t, count);
      }
      return;
    }
    for (; lane + kBlockLanes <= num_lanes_; lane += kBlockLanes) Op::template Run<kVectors>(*this, lane, t, count);
    for (; lane < num_lanes_; lane += kLanes) Op::template Run<1>(*this, lane, t, count);
  }

  // Scores of 16 tokens against kV vectors of rows.
  struct ScoreTile {
    template <int kV>
    static HWY_INLINE void Run(PrefillPart& part, size_t lane, int t, int /*count*/) {
      const F32Tag df;
      for (size_t j = 0; j < kTileTokens; j += kCoefficients) {
        F32Vec acc[kCoefficients][kV];
        for (int i = 0; i < kCoefficients; ++i) {
          for (int v = 0; v < kV; ++v) acc[i][v] = hn::Zero(df);
        }
        AddOuterProducts<kCoefficients, kV>({part.d_, part.queries_ + lane, kRowStride, part.tile_ + j, kTileTokens}, acc);
        float* HWY_RESTRICT scores = part.scores_ + (static_cast<size_t>(t) + j) * kRowStride + lane;
        for (int i = 0; i < kCoefficients; ++i) {
          for (int v = 0; v < kV; ++v) hn::StoreU(acc[i][v], df, scores + static_cast<size_t>(i) * kRowStride + v * kLanes);
        }
      }
    }
  };

  // Weights of `count` tokens times their values, for kV vectors of rows.
  struct ValueTile {
    template <int kV>
    static HWY_INLINE void Run(PrefillPart& part, size_t lane, int t, int count) {
      const F32Tag df;
      for (size_t c = 0; c < part.d_; c += kCoefficients) {
        F32Vec acc[kCoefficients][kV];
        float* HWY_RESTRICT output = part.output_ + c * kRowStride + lane;
        for (int i = 0; i < kCoefficients; ++i) {
          for (int v = 0; v < kV; ++v) acc[i][v] = hn::LoadU(df, output + static_cast<size_t>(i) * kRowStride + v * kLanes);
        }
        AddOuterProducts<kCoefficients, kV>({static_cast<size_t>(count), part.scores_ + static_cast<size_t>(t) * kRowStride + lane,
                                             kRowStride, part.tile_ + c, part.d_},
                                            acc);
        for (int i = 0; i < kCoefficients; ++i) {
          for (int v = 0; v < kV; ++v) hn::StoreU(acc[i][v], df, output + static_cast<size_t>(i) * kRowStride + v * kLanes);
        }
      }
    }
  };

  // Scores of kLanes rows and the whole page become probabilities; running maximum, sum and output follow.
  void Weigh(size_t lane, int num_tokens, bool causal) {
    const F32Tag df;
    const F32Vec none = hn::Set(df, -std::numeric_limits<float>::infinity());
    float* HWY_RESTRICT scores = scores_ + lane;
    if (causal) {
      const F32Vec visible = hn::LoadU(df, visible_ + lane);
      for (int t = params_.last_page_tokens; t < num_tokens; ++t) {
        float* at = scores + static_cast<size_t>(t) * kRowStride;
        hn::StoreU(hn::IfThenElse(hn::Lt(hn::Set(df, static_cast<float>(t)), visible), hn::LoadU(df, at), none), df, at);
      }
    }
    const F32Vec old_max = hn::LoadU(df, max_ + lane);
    // The page's constant is added to its largest score and taken off the reference of the others.
    const F32Vec page_term = hn::LoadU(df, page_term_ + lane);
    F32Vec page_max = none;
    for (int t = 0; t < num_tokens; ++t) page_max = hn::Max(page_max, hn::LoadU(df, scores + static_cast<size_t>(t) * kRowStride));
    const F32Vec max = hn::Max(old_max, hn::Add(page_max, page_term));
    const F32Vec reference = hn::Sub(max, page_term);
    F32Vec sum = hn::LoadU(df, sum_ + lane);
    if (!hn::AllFalse(df, hn::Gt(max, old_max))) {
      const F32Vec factor = Exp2NonPositive(hn::Sub(old_max, max));
      sum = hn::Mul(sum, factor);
      for (size_t c = 0; c < d_; ++c) {
        float* at = output_ + c * kRowStride + lane;
        hn::StoreU(hn::Mul(hn::LoadU(df, at), factor), df, at);
      }
      hn::StoreU(max, df, max_ + lane);
    }
    for (int t = 0; t < num_tokens; ++t) {
      float* at = scores + static_cast<size_t>(t) * kRowStride;
      const F32Vec p = Exp2NonPositive(hn::Sub(hn::LoadU(df, at), reference));
      sum = hn::Add(sum, p);
      hn::StoreU(p, df, at);
    }
    hn::StoreU(sum, df, sum_ + lane);
  }

  void Finish() {
    const F32Tag df;
    const int num_rows = params_.num_rows;
    std::copy_n(max_, num_rows, params_.sums.max);
    std::copy_n(sum_, num_rows, params_.sums.sum);
    for (int r = 0; r < num_rows; r += 4) {
      for (size_t c = 0; c < d_; c += kLanes) {
        base::HWY_NAMESPACE::U32Vec words[4];  // kLanes channels of four rows
        const float* from = output_ + c * kRowStride + static_cast<size_t>(r);
        base::HWY_NAMESPACE::TransposeFourWords([&](size_t j) HWY_ATTR { return from + j * kRowStride; }, words);
        for (int k = 0; k < 4 && r + k < num_rows; ++k) {
          hn::StoreU(hn::BitCast(df, words[k]), df, params_.sums.output + static_cast<size_t>(r + k) * d_ + c);
        }
      }
    }
  }

  const AttendPartParams& params_;
  Reader reader_;
  const size_t d_;
  size_t num_lanes_;
  float* queries_;  // [d, kRowStride] f32, scaled, transposed
  float* output_;   // [d, kRowStride]
  float* scores_;   // [64, kRowStride], then probabilities
  float* tile_;     // [d, 16] of K or [16, d] of V
  alignas(64) float max_[kMaxTileRows];
  alignas(64) float sum_[kMaxTileRows];
  alignas(64) float visible_[kMaxTileRows];
  alignas(64) float page_term_[kMaxTileRows] = {};  // constant score of the page's mean
};

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
