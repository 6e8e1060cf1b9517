// The slow judge: one row encoded and decoded, and attention over a whole sequence, in obvious double precision. Shares no
// code with the kernels that it judges. Used by tests and by embedding programs that want to check us.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar::reference {

// A row of the affine layout: x_hat = offset + scale * code in code space.
struct AffineRow {
  std::vector<uint8_t> codes;  // [d], 0 .. 2^bits - 1
  uint16_t scale_f16 = 0;      // IEEE binary16 bits
  uint16_t offset_f16 = 0;
};

// What a transformed row is rounded to before it is encoded: bf16 for the published encoders but
// EncoderKind::kIntegerZeroPoint, since QuaRot works in f32 (method.md 3.1 "rotate", baselines.md 5.3), as error feedback does.
enum class RowRounding : uint8_t { kBf16, kF32 };
RowRounding RoundingOf(EncoderKind encoder);

// The mean that is subtracted from the rows of page `page_index`: empty, the constant mean, or the mean over the 64 positions
// of the page of the profile's mean turned to each (quality.md 3).
std::vector<float> PageMean(const RowProfile& profile, const RotaryEmbedding& rotary, int page_index);

// y = round((x - mu) A) with mu and A of the row profile: what the encoder sees. Double accumulation, one rounding.
// mean: mu for this page [d], or empty.
std::vector<float> TransformRow(std::span<const float> x, const KvTransform& transform, std::span<const float> mean,
                                RowRounding rounding = RowRounding::kBf16);

// Encodes y [d] (already transformed) with the clip, range factor and encoder of the profile. bits: 1, 2 or 4. kNonFinite for
// NaN, infinity, or fp16 overflow of scale or offset; kInvalidArgument for other bits, a clip ratio above 1 or NaN, or a metric of another length;
// kUnsupported for an encoder that does not exist yet. Error feedback (quality.md 4 and 5) is all double, from the row's metric.
Result<AffineRow> EncodeRow(std::span<const float> y, int bits, const RowProfile& profile);

// Decodes to code space [d].
std::vector<double> DecodeRow(const AffineRow& row);
// x_hat = y_hat A^-1 + mu.
std::vector<double> InverseTransformRow(std::span<const double> y_hat, const KvTransform& transform, std::span<const float> mean);

// Attention of one query over rows that may have been encoded and decoded: out[d] = softmax(scale q K^T) V, double.
// keys, values: [n][d]. n = 0 gives zeros.
std::vector<double> Attend(std::span<const float> query, const std::vector<std::vector<double>>& keys,
                           const std::vector<std::vector<double>>& values, double scale);

}  // namespace oscar::reference
