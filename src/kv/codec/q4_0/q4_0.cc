// A block is 18 bytes: d_16 fp16, then 16 bytes of codes, elements 0 .. 15 in the low nibbles and 16 .. 31 in the high ones.
//   m = the element of largest magnitude, the first on ties;  d = m / -8;  q = min(15, trunc(x / d + 8.5));  x_hat = (q - 8) d_16
#include "src/kv/codec/q4_0/q4_0.h"

#include <algorithm>
#include <cmath>

#include "src/kv/codec/block_rows.h"
#include "src/kv/codec/code_groups.h"

namespace oscar::q4_0 {
namespace {

struct Block {
  static constexpr std::size_t kValues = 32, kBytes = 18;

  static bool Encode(const float* x, std::byte* block) {
    float extreme = 0;
    for (std::size_t i = 0; i < kValues; ++i) {
      if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
    }
    const float d = extreme / -8.0f + 0.0f;  // no negative zero
    const uint16_t d_f16 = base::F16FromF32(d);
    // A scale that fp16 rounds to 0 reads back as 0 whatever the codes.
    const float inverse = (d_f16 & 0x7FFF) == 0 ? 0.0f : 1.0f / d;
    codec::StoreF16(d_f16, block);
    const auto code = [&](std::size_t i) { return static_cast<unsigned>(std::min(15, static_cast<int>(x[i] * inverse + 8.5f))); };
    for (std::size_t i = 0; i < kValues / 2; ++i) block[2 + i] = static_cast<std::byte>(code(i) | code(i + kValues / 2) << 4);
    return std::isfinite(base::F32FromF16(d_f16));
  }
  static void Decode(const std::byte* block, float* x) {
    const float scale = codec::LoadF16(block);
    for (std::size_t i = 0; i < kValues / 2; ++i) {
      const int codes = std::to_integer<int>(block[2 + i]);
      x[i] = scale * static_cast<float>((codes & 15) - 8);
      x[i + kValues / 2] = scale * static_cast<float>((codes >> 4) - 8);
    }
  }
};

using Rows = codec::BlockRows<Block>;

}  // namespace

std::size_t PageBytes(int head_dim) { return Rows::PageBytes(head_dim); }
const kernels::RowCodec& Codec() { return Rows::Codec(); }
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) { return Rows::MakeProfile(method, shape); }

}  // namespace oscar::q4_0
