// The slow judge of oscar/reference.h. Written to be obviously right: sorting for the clip, one loop per formula, double
// precision wherever the specification does not say f32. Shares nothing with the kernels but the f16 and bf16 conversions.
#include "oscar/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>

#include "src/base/check.h"
#include "src/base/float_bits.h"

namespace oscar::reference {
namespace {

// method.md 3.2, with a sort.
void ClipByRank(std::vector<float>& y, float ratio) {
  std::vector<float> magnitudes;
  for (float value : y) magnitudes.push_back(std::abs(value));
  std::sort(magnitudes.begin(), magnitudes.end());
  const double written_ratio = std::round(static_cast<double>(ratio) * 1e6) / 1e6;  // 0.96f is meant as 0.96
  const int d = static_cast<int>(y.size());
  const int index = std::min(static_cast<int>(std::floor(written_ratio * d)), d - 1);
  const float threshold = magnitudes[static_cast<size_t>(index)];
  for (float& value : y) value = std::clamp(value, -threshold, threshold);
}

// method.md 3.1: f32 by definition.
AffineRow EncodeMinMaxRow(const std::vector<float>& y, int largest_code) {
  const float lowest = *std::min_element(y.begin(), y.end());
  const float highest = *std::max_element(y.begin(), y.end());
  AffineRow row;
  row.offset_f16 = base::F16FromF32(lowest + 0.0f);  // a lowest of -0 is stored as +0
  row.scale_f16 = base::F16FromF32((highest - lowest) / static_cast<float>(largest_code));
  const float offset = base::F32FromF16(row.offset_f16);
  const float scale = base::F32FromF16(row.scale_f16);
  for (float value : y) {
    if (scale == 0.0f) {
      row.codes.push_back(0);
      continue;
    }
    const float reciprocal = 1.0f / scale;
    const float steps = (value - offset) * reciprocal;
    row.codes.push_back(static_cast<uint8_t>(std::clamp(std::floor(steps + 0.5f), 0.0f, static_cast<float>(largest_code))));
  }
  return row;
}

float RoundHalfToEven(float value) {
  const float below = std::floor(value);
  const float fraction = value - below;
  if (fraction != 0.5f) return std::floor(value + 0.5f);
  return std::fmod(below, 2.0f) == 0.0f ? below : below + 1.0f;
}

// baselines.md 5.3, in f32 as QuaRot is.
AffineRow EncodeIntegerZeroPointRow(const std::vector<float>& y, float factor, int largest_code) {
  const float lowest = *std::min_element(y.begin(), y.end());
  float lo = factor * lowest;
  float hi = factor * *std::max_element(y.begin(), y.end());
  if (lo == 0.0f && hi == 0.0f) {
    lo = -1.0f;
    hi = 1.0f;
  }
  const float s = (hi - lo) / static_cast<float>(largest_code);
  AffineRow row;
  row.scale_f16 = base::F16FromF32(s);
  if (base::F32FromF16(row.scale_f16) == 0.0f) {  // a constant row, where QuaRot divides by zero
    row.scale_f16 = 0;
    row.offset_f16 = base::F16FromF32(lowest + 0.0f);
    row.codes.assign(y.size(), 0);
    return row;
  }
  const float z = RoundHalfToEven(-lo / s);
  row.offset_f16 = base::F16FromF32(-z * s + 0.0f);
  for (float value : y) {
    row.codes.push_back(
        static_cast<uint8_t>(std::clamp(RoundHalfToEven(value / s) + z, 0.0f, static_cast<float>(largest_code))));
  }
  return row;
}

using DoubleRow = std::vector<double>;
using DoubleMatrix = std::vector<DoubleRow>;

// quality.md 2: the Hadamard matrix, or its Kronecker product with an orthonormal DCT-II.
DoubleMatrix Mixing(size_t d) {
  size_t n = 1;
  while (d % (2 * n) == 0) n *= 2;
  const size_t m = d / n;
  DoubleMatrix q(d, DoubleRow(d));
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) {
      double value = 1 / std::sqrt(static_cast<double>(n));
      for (size_t bits = (i / m) & (j / m); bits != 0; bits &= bits - 1) value = -value;
      const double k = static_cast<double>(i % m), l = static_cast<double>(j % m), order = static_cast<double>(m);
      value *= std::sqrt((i % m == 0 ? 1 : 2) / order) * std::cos(std::numbers::pi * (2 * l + 1) * k / (2 * order));
      q[i][j] = value;
    }
  }
  return q;
}

// G and N of quality.md 5.
struct FeedbackMatrices {
  std::vector<float> metric;
  DoubleMatrix g, n;
};

// Those of the last metric are kept: callers encode many rows of one description.
const FeedbackMatrices& MatricesOf(std::span<const float> metric) {
  thread_local FeedbackMatrices made;
  if (std::equal(metric.begin(), metric.end(), made.metric.begin(), made.metric.end())) return made;
  const size_t d = metric.size();
  made.metric.assign(metric.begin(), metric.end());
  const DoubleMatrix q = Mixing(d);
  made.g.assign(d, DoubleRow(d, 0.0));
  double mean_diagonal = 0;
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) {
      for (size_t k = 0; k < d; ++k) made.g[i][j] += q[k][i] * static_cast<double>(metric[k]) * q[k][j];
    }
    mean_diagonal += made.g[i][i] / static_cast<double>(d);
  }
  for (DoubleRow& row : made.g) {
    for (double& value : row) value /= mean_diagonal;
  }
  DoubleMatrix c(d, DoubleRow(d, 0.0));  // Cholesky-Banachiewicz
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double rest = made.g[i][j];
      for (size_t k = 0; k < j; ++k) rest -= c[i][k] * c[j][k];
      c[i][j] = i == j ? std::sqrt(rest) : rest / c[j][j];
    }
  }
  made.n.assign(d, DoubleRow(d, 0.0));
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j <= i; ++j) made.n[i][j] = c[i][j] / c[j][j];
  }
  return made;
}

double InnerProduct(const DoubleRow& u, const DoubleMatrix& g, const DoubleRow& v) {
  double sum = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    for (size_t j = 0; j < v.size(); ++j) sum += u[i] * g[i][j] * v[j];
  }
  return sum;
}

// quality.md 4 and 5, step by step, in double.
class ErrorFeedbackRow {
 public:
  ErrorFeedbackRow(std::span<const float> y, int bits, const RowProfile& profile)
      : y_(y.begin(), y.end()), d_(y.size()), bits_(bits), half_(((1 << bits) - 1) / 2.0), c_(d_), profile_(profile) {}

  AffineRow Encode() {
    double mean = 0;
    for (const double value : y_) mean += value / static_cast<double>(d_);
    const auto [lowest, highest] = std::minmax_element(y_.begin(), y_.end());
    AffineRow row;
    row.codes.assign(d_, 0);
    row.offset_f16 = base::F16FromF32(static_cast<float>(mean) + 0.0f);
    if (*lowest == *highest) return row;

    a_ = mean;
    b_ = 0.6 * (*highest - *lowest) / (2 * half_);
    for (int refit = 0; refit < 2; ++refit) Refit();
    const double fitted_scale = b_;
    b_ *= bits_ == 1 ? 1.2 : 1.1;
    for (size_t i = 0; i < d_; ++i) c_[i] = Nearest(y_[i]);
    const FeedbackMatrices& matrices = MatricesOf(profile_.metric);
    if (profile_.encode_effort >= 1) FeedBack(matrices.n);
    if (profile_.encode_effort >= 2) {
      for (int sweep = 0; sweep < 2; ++sweep) Descend(matrices.g);
    }
    SetGain(matrices.g, mean, fitted_scale);

    row.scale_f16 = base::F16FromF32(static_cast<float>(b_));
    if (base::F32FromF16(row.scale_f16) == 0.0f) {  // no two levels that fp16 can tell apart
      row.scale_f16 = 0;
      return row;
    }
    row.offset_f16 = base::F16FromF32(static_cast<float>(a_ - b_ * half_) + 0.0f);
    for (size_t i = 0; i < d_; ++i) row.codes[i] = static_cast<uint8_t>(c_[i] + half_);
    return row;
  }

 private:
  double Nearest(double value) const {
    return std::clamp(std::floor((value - a_) / b_ + half_ + 0.5) - half_, -half_, half_);
  }
  double MeanLevel() const {
    double sum = 0;
    for (const double level : c_) sum += level;
    return sum / static_cast<double>(d_);
  }
  // Least squares of y on c.
  void Refit() {
    for (size_t i = 0; i < d_; ++i) c_[i] = Nearest(y_[i]);
    const double mean_level = MeanLevel();
    double mean = 0, covariance = 0, variance = 0;
    for (const double value : y_) mean += value / static_cast<double>(d_);
    for (size_t i = 0; i < d_; ++i) {
      covariance += (c_[i] - mean_level) * (y_[i] - mean);
      variance += (c_[i] - mean_level) * (c_[i] - mean_level);
    }
    if (!(variance > 0) || !(covariance > 0)) return;
    b_ = covariance / variance;
    a_ = mean - b_ * mean_level;
  }
  void FeedBack(const DoubleMatrix& n) {
    DoubleRow fed(d_, 0.0);
    for (size_t i = d_; i-- > 0;) {
      c_[i] = Nearest(y_[i] - fed[i]);
      const double error = a_ + b_ * c_[i] - y_[i];
      for (size_t j = 0; j < i; ++j) fed[j] += error * n[i][j];
    }
  }
  void Descend(const DoubleMatrix& g) {
    DoubleRow error(d_), r(d_, 0.0);
    for (size_t i = 0; i < d_; ++i) error[i] = a_ + b_ * c_[i] - y_[i];
    for (size_t i = 0; i < d_; ++i) {
      for (size_t j = 0; j < d_; ++j) r[j] += error[i] * g[i][j];
    }
    for (size_t i = 0; i < d_; ++i) {
      c_[i] = Nearest(y_[i] + error[i] - r[i] / g[i][i]);
      const double change = a_ + b_ * c_[i] - y_[i] - error[i];
      error[i] += change;
      for (size_t j = 0; j < d_; ++j) r[j] += change * g[i][j];
    }
  }
  void SetGain(const DoubleMatrix& g, double mean, double fitted_scale) {
    DoubleRow centred(d_), levels(d_);
    const double mean_level = MeanLevel();
    for (size_t i = 0; i < d_; ++i) {
      centred[i] = y_[i] - mean;
      levels[i] = c_[i] - mean_level;
    }
    const double length = InnerProduct(centred, g, centred), along = InnerProduct(levels, g, centred);
    b_ = length > 0 && along > 0 ? length / along : fitted_scale;
    a_ = mean - b_ * mean_level;
  }

  const DoubleRow y_;
  const size_t d_;
  const int bits_;
  const double half_;
  DoubleRow c_;  // levels
  const RowProfile& profile_;
  double a_ = 0, b_ = 0;
};

// baselines.md 5.6. Levels lie at mean +- 0.5 scale and +- 1.5 scale.
AffineRow EncodeLloydRow(const std::vector<float>& y, float ratio) {
  const double n = static_cast<double>(y.size());
  double mean = 0, variance = 0;
  for (const float value : y) mean += static_cast<double>(value);
  mean /= n;
  for (const float value : y) variance += (static_cast<double>(value) - mean) * (static_cast<double>(value) - mean);
  const double sigma = std::sqrt(variance / n + 1e-8);
  const double scale = 2 * 1.5095585584640503 / 3 * static_cast<double>(ratio) * sigma;
  AffineRow row;
  row.scale_f16 = base::F16FromF32(static_cast<float>(scale));
  row.offset_f16 = base::F16FromF32(static_cast<float>(mean - 1.5 * scale));
  for (const float value : y) {
    const double z = (static_cast<double>(value) - mean) / sigma;
    row.codes.push_back(z > 0.9810652732849121 ? 3 : z > 0 ? 2 : z > -0.9810652732849121 ? 1 : 0);
  }
  return row;
}

}  // namespace

RowRounding RoundingOf(EncoderKind encoder) {
  return encoder == EncoderKind::kIntegerZeroPoint || encoder == EncoderKind::kErrorFeedback ? RowRounding::kF32 : RowRounding::kBf16;
}

std::vector<float> PageMean(const RowProfile& profile, const RotaryEmbedding& rotary, int page_index) {
  std::vector<float> mean(profile.mean.begin(), profile.mean.end());
  if (profile.mean_kind == MeanKind::kConstant) return mean;
  const size_t pairs = rotary.angles.size();
  for (size_t j = 0; j < pairs; ++j) {
    const size_t a = rotary.halves ? j : 2 * j, b = rotary.halves ? j + pairs : 2 * j + 1;
    const double x = static_cast<double>(profile.mean[a]), y = static_cast<double>(profile.mean[b]);
    double sum_a = 0, sum_b = 0;
    for (int t = kPageTokens * page_index; t < kPageTokens * (page_index + 1); ++t) {
      const double turn = t * static_cast<double>(rotary.angles[j]);
      sum_a += x * std::cos(turn) - y * std::sin(turn);
      sum_b += x * std::sin(turn) + y * std::cos(turn);
    }
    mean[a] = static_cast<float>(sum_a / kPageTokens);
    mean[b] = static_cast<float>(sum_b / kPageTokens);
  }
  return mean;
}

std::vector<float> TransformRow(std::span<const float> x, const KvTransform& transform, std::span<const float> mean,
                                RowRounding rounding) {
  const size_t d = x.size();
  OSCAR_CHECK(d == static_cast<size_t>(transform.head_dim()) && (mean.empty() || mean.size() == d));
  std::vector<double> sums(d, 0.0);
  for (size_t i = 0; i < d; ++i) {
    const double centred = static_cast<double>(x[i]) - (mean.empty() ? 0.0 : static_cast<double>(mean[i]));
    for (size_t j = 0; j < d; ++j) sums[j] += centred * static_cast<double>(transform.matrix()[i * d + j]);
  }
  std::vector<float> y(sums.begin(), sums.end());
  if (rounding == RowRounding::kBf16) {
    for (float& value : y) value = base::RoundToBf16(value);
  }
  return y;
}

Result<AffineRow> EncodeRow(std::span<const float> y, int bits, const RowProfile& profile) {
  if (bits != 1 && bits != 2 && bits != 4) {
    return {StatusCode::kInvalidArgument, "an affine row has 1, 2 or 4 bits, not " + std::to_string(bits)};
  }
  if (std::isnan(profile.clip_ratio) || profile.clip_ratio > 1.0f) {
    return {StatusCode::kInvalidArgument, "clip ratio " + std::to_string(profile.clip_ratio) + " is above 1 or not a number"};
  }
  for (size_t i = 0; i < y.size(); ++i) {
    if (!std::isfinite(y[i])) return {StatusCode::kNonFinite, "row value " + std::to_string(i) + " is not finite"};
  }
  std::vector<float> clipped(y.begin(), y.end());
  if (profile.clip_ratio > 0.0f) ClipByRank(clipped, profile.clip_ratio);
  const int largest_code = (1 << bits) - 1;
  AffineRow row;
  switch (profile.encoder) {
    case EncoderKind::kMinMax: row = EncodeMinMaxRow(clipped, largest_code); break;
    case EncoderKind::kIntegerZeroPoint:
      row = EncodeIntegerZeroPointRow(clipped, profile.range_factor, largest_code);
      break;
    case EncoderKind::kErrorFeedback:
      if (profile.metric.size() != y.size()) return {StatusCode::kInvalidArgument, "error feedback needs a metric of the row's length"};
      row = ErrorFeedbackRow(clipped, bits, profile).Encode();
      break;
    case EncoderKind::kLloydAffine:
      if (bits != 2) return {StatusCode::kUnsupported, "the Lloyd-affine encoder has 2 bits, not " + std::to_string(bits)};
      row = EncodeLloydRow(clipped, profile.range_factor);
      break;
    default: return {StatusCode::kUnsupported, "the encoder of this row profile is not implemented"};
  }
  if (!std::isfinite(base::F32FromF16(row.scale_f16)) || !std::isfinite(base::F32FromF16(row.offset_f16))) {
    return {StatusCode::kNonFinite, "scale or offset of a row is beyond fp16"};
  }
  return row;
}

std::vector<double> DecodeRow(const AffineRow& row) {
  std::vector<double> y;
  for (uint8_t code : row.codes) {
    y.push_back(static_cast<double>(base::F32FromF16(row.offset_f16)) + static_cast<double>(base::F32FromF16(row.scale_f16)) * code);
  }
  return y;
}

std::vector<double> InverseTransformRow(std::span<const double> y_hat, const KvTransform& transform, std::span<const float> mean) {
  const size_t d = y_hat.size();
  OSCAR_CHECK(d == static_cast<size_t>(transform.head_dim()) && (mean.empty() || mean.size() == d));
  std::vector<double> x(d, 0.0);
  for (size_t i = 0; i < d; ++i) {
    for (size_t j = 0; j < d; ++j) x[j] += y_hat[i] * static_cast<double>(transform.inverse()[i * d + j]);
  }
  for (size_t j = 0; j < mean.size(); ++j) x[j] += static_cast<double>(mean[j]);
  return x;
}

std::vector<double> Attend(std::span<const float> query, const std::vector<std::vector<double>>& keys,
                           const std::vector<std::vector<double>>& values, double scale) {
  OSCAR_CHECK(keys.size() == values.size());
  std::vector<double> scores(keys.size());
  for (size_t t = 0; t < keys.size(); ++t) {
    for (size_t i = 0; i < query.size(); ++i) scores[t] += static_cast<double>(query[i]) * keys[t][i];
    scores[t] *= scale;
  }
  std::vector<double> output(query.size(), 0.0);
  if (keys.empty()) return output;
  const double highest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (size_t t = 0; t < keys.size(); ++t) {
    const double weight = std::exp(scores[t] - highest);
    total += weight;
    for (size_t i = 0; i < output.size(); ++i) output[i] += weight * values[t][i];
  }
  for (double& value : output) value /= total;
  return output;
}

}  // namespace oscar::reference
