// The slow judge of oscar/reference.h. Written to be obviously right: sorting for the clip, one loop per formula, double
// precision wherever the specification does not say f32. Shares nothing with the kernels but the f16 and bf16 conversions.
#include "oscar/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
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

}  // namespace

RowRounding RoundingOf(EncoderKind encoder) {
  return encoder == EncoderKind::kIntegerZeroPoint ? RowRounding::kF32 : RowRounding::kBf16;
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
