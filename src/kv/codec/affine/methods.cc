#include "src/kv/codec/affine/methods.h"

#include <string>
#include <utility>
#include <vector>

#include "oscar/codec.h"
#include "src/base/status_macros.h"
#include "src/kv/codec/registry.h"

namespace oscar {
namespace affine {
namespace {

// Clip ratios of method.md 3.2: 0.96 for K, 0.92 for V. Those of a calibrated method come with its profile.
constexpr MethodPreset kMethods[] = {
    {.name = "naive"},
    {.name = "clip", .clip_k = 0.96f, .clip_v = 0.92f},
    {.name = "hadamard", .transform = TransformKind::kHadamard},
    // What the OSCAR paper's tables compare with as QuaRot-INT2 (baselines.md 5.3): Hadamard with OSCAR's rank clip.
    {.name = "hadamard_clip", .transform = TransformKind::kHadamard, .clip_k = 0.96f, .clip_v = 0.92f},
    {.name = "quarot", .transform = TransformKind::kHadamard, .encoder = EncoderKind::kIntegerZeroPoint},
    {.name = "oscar", .transform = TransformKind::kOrthogonal, .clip_k = 0.96f, .clip_v = 0.92f, .calibrated = true},
    {.name = "balanced", .transform = TransformKind::kInvertible, .encoder = EncoderKind::kErrorFeedback, .calibrated = true},
};

}  // namespace

const MethodPreset* FindMethod(std::string_view name) {
  for (const MethodPreset& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

Status CheckRowProfile(const RowProfile& row, int bits) {
  if (row.encoder == EncoderKind::kLloydAffine && bits != 2) {
    return {StatusCode::kUnsupported, "the Lloyd-affine encoder has 2 bits, not " + std::to_string(bits)};
  }
  if (row.range_factor != 1.0f && row.encoder != EncoderKind::kIntegerZeroPoint && row.encoder != EncoderKind::kLloydAffine) {
    return {StatusCode::kInvalidArgument, "a range factor needs the integer zero point or the Lloyd-affine encoder"};
  }
  if (row.clip_ratio > 0 && row.encoder == EncoderKind::kErrorFeedback) {
    return {StatusCode::kInvalidArgument, "error feedback takes no rank clip"};
  }
  const int head_dim = row.transform->head_dim();
  if (head_dim % (32 / bits) != 0) {
    return {StatusCode::kUnsupported, "head dimension " + std::to_string(head_dim) + " does not fill words of " +
                                          std::to_string(bits) + "-bit codes; it must be a multiple of " + std::to_string(32 / bits)};
  }
  return {};
}

}  // namespace affine

Result<CodecProfile> DataFreeProfile(std::string_view method, const KvShape& shape, const RotaryEmbedding& rotary) {
  OSCAR_ASSIGN_OR_RETURN(const KvMethod parsed, ParseKvMethod(method));
  if (shape.num_layers < 1 || shape.num_kv_heads < 1 || shape.head_dim < 1) {
    return {StatusCode::kInvalidArgument, "a KV profile needs at least one layer, one KV head and one channel"};
  }
  if (!parsed.is_exact()) {
    const CodecKernelEntry* entry = FindCpuKernels(*parsed.codec);
    if (entry != nullptr && entry->make_profile != nullptr) return entry->make_profile(parsed, shape, rotary);
  }
  affine::MethodPreset preset;  // bf16: identity, nothing clipped, never encoded
  if (!parsed.is_exact()) {
    preset = *affine::FindMethod(parsed.method);
    if (preset.calibrated) {
      return {StatusCode::kFailedPrecondition, parsed.name() + " is a calibrated method and needs a profile file"};
    }
  }
  std::vector<KvTransform> transforms;
  if (preset.transform == TransformKind::kHadamard) {
    auto hadamard = KvTransform::Hadamard(shape.head_dim);
    if (!hadamard.ok()) return hadamard.status().WithContext(parsed.name());
    transforms.push_back(std::move(hadamard).value());
  } else {
    transforms.push_back(KvTransform::Identity(shape.head_dim));
  }
  std::vector<CodecProfile::Row> rows;
  rows.reserve(static_cast<size_t>(shape.num_layers) * shape.num_kv_heads * 2);
  for (int i = 0; i < shape.num_layers * shape.num_kv_heads; ++i) {
    for (float clip_ratio : {preset.clip_k, preset.clip_v}) {
      CodecProfile::Row row;
      row.clip_ratio = clip_ratio;
      row.encoder = preset.encoder;
      rows.push_back(std::move(row));
    }
  }
  return CodecProfile::Create(parsed.name(), shape, std::move(transforms), std::move(rows), Provenance{});
}

}  // namespace oscar
