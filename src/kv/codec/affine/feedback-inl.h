// The error-feedback encoder of quality.md 4 and 5, sixteen rows at a time with a row in each lane: no horizontal sums, and the
// serial chain of one row (a code depends on the errors of the codes before it) is hidden behind the others. All in f32
// without FMA and with sums in an order that no vector length changes, so that the bytes are the same on every target.
//
// Both passes take their products as dots of finished errors with a row of the matrix: F_i = sum_{j > i} e_j N_ji of the
// feedback and r_i = sum_j e_j G_ji of the sweeps, with the e_j as they are when component i is visited. That is what the
// running sums of quality.md hold at that moment, and it stores nothing.
#if defined(OSCAR_SRC_KV_CODEC_AFFINE_FEEDBACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_CODEC_AFFINE_FEEDBACK_INL_H_
#undef OSCAR_SRC_KV_CODEC_AFFINE_FEEDBACK_INL_H_
#else
#define OSCAR_SRC_KV_CODEC_AFFINE_FEEDBACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "src/base/float_bits.h"
#include "src/base/simd_extra-inl.h"
#include "src/kv/codec/affine/encoder.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/kernels/params.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;
using base::HWY_NAMESPACE::U32Vec;

// One value of each of the 16 rows.
struct Lanes16 {
  static constexpr size_t kVectors = kLaneGroup / kLanes;
  F32Vec v[kVectors];
};

template <class Fn>
HWY_INLINE Lanes16 ForLanes(const Fn& fn) {
  Lanes16 result;
#pragma GCC unroll 16
  for (size_t i = 0; i < Lanes16::kVectors; ++i) result.v[i] = fn(i);
  return result;
}
HWY_INLINE Lanes16 LoadLanes(const float* from) {
  return ForLanes([&](size_t i) HWY_ATTR { return hn::Load(F32Tag(), from + i * kLanes); });
}
HWY_INLINE void StoreLanes(const Lanes16& value, float* to) {
#pragma GCC unroll 16
  for (size_t i = 0; i < Lanes16::kVectors; ++i) hn::Store(value.v[i], F32Tag(), to + i * kLanes);
}
HWY_INLINE Lanes16 SetLanes(float value) {
  return ForLanes([&](size_t) HWY_ATTR { return hn::Set(F32Tag(), value); });
}
HWY_INLINE Lanes16 Add(const Lanes16& a, const Lanes16& b) {
  return ForLanes([&](size_t i) HWY_ATTR { return hn::Add(a.v[i], b.v[i]); });
}
HWY_INLINE Lanes16 Sub(const Lanes16& a, const Lanes16& b) {
  return ForLanes([&](size_t i) HWY_ATTR { return hn::Sub(a.v[i], b.v[i]); });
}
HWY_INLINE Lanes16 Mul(const Lanes16& a, const Lanes16& b) {
  return ForLanes([&](size_t i) HWY_ATTR { return hn::Mul(a.v[i], b.v[i]); });
}
HWY_INLINE Lanes16 Div(const Lanes16& a, const Lanes16& b) {
  return ForLanes([&](size_t i) HWY_ATTR { return hn::Div(a.v[i], b.v[i]); });
}
// a where both x and y are above 0, else b.
HWY_INLINE Lanes16 IfPositive(const Lanes16& x, const Lanes16& y, const Lanes16& a, const Lanes16& b) {
  const F32Vec zero = hn::Zero(F32Tag());
  return ForLanes([&](size_t i) HWY_ATTR {
    return hn::IfThenElse(hn::And(hn::Gt(x.v[i], zero), hn::Gt(y.v[i], zero)), a.v[i], b.v[i]);
  });
}

template <int kBits>
class FeedbackTile {
 public:
  static constexpr float kHalf = static_cast<float>((1 << kBits) - 1) / 2;  // levels are code - kHalf
  static constexpr float kRoom = kBits == 1 ? 1.2f : 1.1f;                  // kappa of quality.md 4

  // rows [16, d]. Precondition: `row` has error feedback for d = head_dim, a multiple of 16.
  FeedbackTile(const float* rows, size_t d, const RowProfile& row) : d_(d), row_(row) { LoadRows(rows); }

  // codes [16, d] u8, scales and offsets [16] fp16. The index of the first row that is not finite or beyond fp16, or -1.
  int Encode(uint8_t* HWY_RESTRICT codes, uint16_t* scales, uint16_t* offsets) {
    FitScale();
    const Lanes16 fitted_scale = scale_;
    scale_ = Mul(scale_, SetLanes(kRoom));
    reciprocal_ = Div(SetLanes(1.0f), scale_);
    if (row_.encode_effort >= 1) {
      FeedBack();
    } else {
      for (size_t i = 0; i < d_; ++i) StoreLevel(i, Nearest(LoadLanes(At(centred_, i))));
    }
    for (int sweep = 0; row_.encode_effort >= 2 && sweep < 2; ++sweep) Descend();
    SetGain(fitted_scale);
    return Store(codes, scales, offsets);
  }

 private:
  float* At(float* values, size_t i) const { return values + i * kLaneGroup; }

  // centred_[i][t] = y_t[i] - mean of y_t. Rows that are not finite become 0 here and are refused at the end.
  void LoadRows(const float* HWY_RESTRICT rows) {
    const F32Tag df;
    for (size_t lane = 0; lane < kLaneGroup; lane += kLanes) {
      for (size_t c = 0; c < d_; c += 4) {
        U32Vec words[4];
        base::HWY_NAMESPACE::TransposeFourWords([&](size_t j) HWY_ATTR { return rows + (lane + j) * d_ + c; }, words);
        for (size_t k = 0; k < 4; ++k) hn::Store(hn::BitCast(df, words[k]), df, At(centred_, c + k) + lane);
      }
    }
    Lanes16 low = LoadLanes(centred_), high = low, sum = SetLanes(0.0f), spoiled = SetLanes(0.0f);
    for (size_t i = 0; i < d_; ++i) {
      const Lanes16 y = LoadLanes(At(centred_, i));
      low = ForLanes([&](size_t v) HWY_ATTR { return hn::Min(low.v[v], y.v[v]); });
      high = ForLanes([&](size_t v) HWY_ATTR { return hn::Max(high.v[v], y.v[v]); });
      sum = Add(sum, y);
      spoiled = Add(spoiled, Sub(y, y));  // 0, or NaN from the first value on that is not finite
    }
    spoiled_ = spoiled;
    range_ = Sub(high, low);
    const Lanes16 mean = Mul(sum, SetLanes(1.0f / static_cast<float>(d_)));
    // Of a constant row exactly its value.
    mean_ = IfPositive(range_, range_, mean, low);
    for (size_t i = 0; i < d_; ++i) StoreLanes(Sub(LoadLanes(At(centred_, i)), mean_), At(centred_, i));
  }

  // The level nearest to (value - shift) / scale, where value is centred as the rows are.
  HWY_INLINE Lanes16 Nearest(const Lanes16& value) const {
    const F32Tag df;
    const F32Vec half = hn::Set(df, kHalf), low = hn::Set(df, -kHalf), rounding = hn::Set(df, kHalf + 0.5f);
    return ForLanes([&](size_t v) HWY_ATTR {
      const F32Vec steps = hn::Mul(hn::Sub(value.v[v], shift_.v[v]), reciprocal_.v[v]);
      return hn::Min(hn::Max(hn::Sub(hn::Floor(hn::Add(steps, rounding)), half), low), half);
    });
  }
  // Level i and its error e_i = a + b c_i - y_i.
  HWY_INLINE void StoreLevel(size_t i, const Lanes16& level) {
    StoreLanes(level, At(levels_, i));
    StoreLanes(Sub(Add(shift_, Mul(scale_, level)), LoadLanes(At(centred_, i))), At(errors_, i));
  }

  // quality.md 4, steps 1 and 2: two least-squares refits. `shift_` is a - mean.
  void FitScale() {
    const float size = static_cast<float>(d_);
    const Lanes16 zero = SetLanes(0.0f), ones = SetLanes(1.0f);
    shift_ = zero;
    scale_ = IfPositive(range_, range_, Mul(range_, SetLanes(0.6f / (2 * kHalf))), ones);
    for (int refit = 0; refit < 2; ++refit) {
      reciprocal_ = Div(ones, scale_);
      Lanes16 sum = zero, squares = zero, products = zero;
      for (size_t i = 0; i < d_; ++i) {
        const Lanes16 y = LoadLanes(At(centred_, i)), level = Nearest(y);
        sum = Add(sum, level);
        squares = Add(squares, Mul(level, level));
        products = Add(products, Mul(level, y));
      }
      const Lanes16 mean_level = Mul(sum, SetLanes(1.0f / size));
      const Lanes16 variance = Sub(squares, Mul(mean_level, sum));
      const Lanes16 scale = Div(products, variance);
      scale_ = IfPositive(variance, products, scale, scale_);
      shift_ = IfPositive(variance, products, Mul(Mul(scale, mean_level), SetLanes(-1.0f)), shift_);
    }
  }

  // sum over j in [first, d) of values[j] matrix[j], in four interleaved sums.
  HWY_INLINE Lanes16 Dot(const float* HWY_RESTRICT matrix, const float* HWY_RESTRICT values, size_t first) const {
    Lanes16 sums[4] = {SetLanes(0.0f), SetLanes(0.0f), SetLanes(0.0f), SetLanes(0.0f)};
    size_t j = first;
    for (; j + 4 <= d_; j += 4) {
#pragma GCC unroll 4
      for (size_t k = 0; k < 4; ++k) {
        sums[k] = Add(sums[k], Mul(LoadLanes(values + (j + k) * kLaneGroup), SetLanes(matrix[j + k])));
      }
    }
    for (; j < d_; ++j) sums[0] = Add(sums[0], Mul(LoadLanes(values + j * kLaneGroup), SetLanes(matrix[j])));
    return Add(Add(sums[0], sums[1]), Add(sums[2], sums[3]));
  }

  // Step 4.
  void FeedBack() {
    const float* feedback = row_.feedback->feedback.data();
    for (size_t i = d_; i-- > 0;) {
      StoreLevel(i, Nearest(Sub(LoadLanes(At(centred_, i)), Dot(feedback + i * d_, errors_, i + 1))));
    }
  }
  // Step 5, one sweep.
  void Descend() {
    const float* metric = row_.feedback->metric.data();
    for (size_t i = 0; i < d_; ++i) {
      const Lanes16 pull = Mul(Dot(metric + i * d_, errors_, 0), SetLanes(row_.feedback->inverse_diagonal[i]));
      StoreLevel(i, Nearest(Sub(Add(LoadLanes(At(centred_, i)), LoadLanes(At(errors_, i))), pull)));
    }
  }
  // Step 6. A row that its levels do not lie along keeps the fitted scale.
  void SetGain(const Lanes16& fitted_scale) {
    const float* metric = row_.feedback->metric.data();
    Lanes16 sum = SetLanes(0.0f);
    for (size_t i = 0; i < d_; ++i) sum = Add(sum, LoadLanes(At(levels_, i)));
    mean_level_ = Mul(sum, SetLanes(1.0f / static_cast<float>(d_)));
    Lanes16 length = SetLanes(0.0f), along = length;
    for (size_t i = 0; i < d_; ++i) {
      const Lanes16 weighted = Dot(metric + i * d_, centred_, 0);
      length = Add(length, Mul(weighted, LoadLanes(At(centred_, i))));
      along = Add(along, Mul(weighted, Sub(LoadLanes(At(levels_, i)), mean_level_)));
    }
    scale_ = IfPositive(length, along, Div(length, along), fitted_scale);
  }

  // Step 7.
  int Store(uint8_t* HWY_RESTRICT codes, uint16_t* scales, uint16_t* offsets) {
    const F32Tag df;
    const hn::RebindToSigned<F32Tag> di;
    const hn::Rebind<uint8_t, F32Tag> d8;
    HWY_ALIGN float scale[kLaneGroup], offset[kLaneGroup], mean[kLaneGroup], range[kLaneGroup], spoiled[kLaneGroup];
    StoreLanes(scale_, scale);
    StoreLanes(Sub(mean_, Mul(scale_, Add(mean_level_, SetLanes(kHalf)))), offset);
    StoreLanes(mean_, mean);
    StoreLanes(range_, range);
    StoreLanes(spoiled_, spoiled);
    int failed = -1;
    for (int t = kLaneGroup - 1; t >= 0; --t) {
      scales[t] = range[t] > 0 ? base::F16FromF32(scale[t]) : 0;
      // Levels that fp16 cannot tell apart are the mean alone.
      const bool constant = base::F32FromF16(scales[t]) == 0.0f;
      if (constant) scales[t] = 0;
      offsets[t] = base::F16FromF32((constant ? mean[t] : offset[t]) + 0.0f);
      if (spoiled[t] != 0.0f || !IsFiniteF16(scales[t]) || !IsFiniteF16(offsets[t])) failed = t;
    }
    for (size_t i = 0; i < d_; ++i) {
      HWY_ALIGN uint8_t column[kLaneGroup];
      for (size_t lane = 0; lane < kLaneGroup; lane += kLanes) {
        const F32Vec code = hn::Add(hn::Load(df, At(levels_, i) + lane), hn::Set(df, kHalf));
        hn::Store(hn::DemoteTo(d8, hn::ConvertTo(di, code)), d8, column + lane);
      }
      for (size_t t = 0; t < kLaneGroup; ++t) codes[t * d_ + i] = scales[t] == 0 ? 0 : column[t];
    }
    return failed;
  }

  const size_t d_;
  const RowProfile& row_;
  Lanes16 mean_, range_, spoiled_, shift_, scale_, reciprocal_, mean_level_;
  HWY_ALIGN float centred_[kernels::kMaxHeadDim * kLaneGroup];
  HWY_ALIGN float levels_[kernels::kMaxHeadDim * kLaneGroup];
  HWY_ALIGN float errors_[kernels::kMaxHeadDim * kLaneGroup];
};

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#endif
