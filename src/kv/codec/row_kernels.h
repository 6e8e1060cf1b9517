// CodecKernels of a row codec (src/kv/kernels/row_codec.h), and profiles of the compared methods: one transform per side, shared by
// all layers and heads, and nothing else.
#pragma once

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/codec_kernels.h"

namespace oscar::codec {

// `codec` must outlive the kernels.
kernels::CodecKernels RowKernels(const kernels::RowCodec& codec);

// kInvalidArgument for an impossible shape.
Result<CodecProfile> SharedTransformProfile(const KvMethod& method, const KvShape& shape, KvTransform key, KvTransform value);

// kUnsupported for what a row codec does not implement: clip, range factor, encoder kinds, a mean that turns.
Status CheckPlainRow(const RowProfile& row);

// kUnsupported unless head_dim is a multiple of `divisor`.
Status CheckHeadDim(const KvMethod& method, int head_dim, int divisor);

}  // namespace oscar::codec
