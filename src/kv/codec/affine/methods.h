// Methods of the affine layout as presets: (transform kind, rank clip, encoder kind) over one row format (architecture.md 4).
// A new method is one entry here, and an encoder if it has a new one.
#pragma once

#include <string_view>

#include "oscar/codec_profile.h"
#include "oscar/kv_transform.h"
#include "oscar/result.h"

namespace oscar::affine {

struct MethodPreset {
  std::string_view name;
  TransformKind transform = TransformKind::kIdentity;
  float clip_k = 0.0f, clip_v = 0.0f;
  EncoderKind encoder = EncoderKind::kMinMax;
  bool calibrated = false;  // the transforms come from a profile file
};

// Methods of each codec, as listed by CodecInfo.
inline constexpr std::string_view kInt1MethodNames[] = {"balanced"};
inline constexpr std::string_view kInt2MethodNames[] = {"balanced", "oscar", "quarot", "hadamard", "hadamard_clip", "clip", "naive"};
inline constexpr std::string_view kInt4MethodNames[] = {"hadamard"};
// nullptr when there is no such method.
const MethodPreset* FindMethod(std::string_view name);

// What CodecProfile::Create cannot know: kUnsupported for an encoder that this codec does not implement, or a head dimension
// that does not fill words of `bits`-bit codes; kInvalidArgument for a range factor or a clip ratio with an encoder that has
// none.
Status CheckRowProfile(const RowProfile& row, int bits);

}  // namespace oscar::affine
