// Encoded pages read back into rows, for evaluation and tools: what a method has made of K and V. Attention never does this.
#pragma once

#include <cstddef>
#include <span>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

struct DecodePagesParams {
  const CodecInfo* codec = nullptr;
  const CodecProfile* profile = nullptr;
  int layer = 0;
  int first_page_index = 0;          // position / 64 of the first token
  std::span<const std::byte> pages;  // one encode unit: encode_tokens / 64 pages as KvCache::ReadEncodedPage gives them, one behind the other
  RowsView<float> keys, values;      // [encode_tokens, num_kv_heads, d]: x_hat = y_hat A^-1 + mu, keys turned as RoPE left them
};

// Rows in the model's space, f32 from sums in double. kInvalidArgument for bf16 (it encodes nothing), a layer that does not exist, or
// sizes that do not fit; kUnsupported for a codec without CPU kernels.
Status DecodePages(const DecodePagesParams& params);

}  // namespace oscar
