// `q8_0`: llama.cpp's KV type of that name (baselines.md 6.7).
#pragma once

#include <cstddef>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::q8_0 {

std::size_t PageBytes(int head_dim);
const kernels::RowCodec& Codec();
// kUnsupported unless the head dimension is a multiple of 32.
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape);

}  // namespace oscar::q8_0
