// A block is 34 bytes: d_16 fp16, then 32 signed bytes.
//   d = max |x| / 127,  q = round_away(x / d) with d before its rounding,  x_hat = q d_16
#include "src/kv/codec/q8_0/q8_0.h"

#include <algorithm>
#include <cmath>

#include "src/kv/codec/block_rows.h"
#include "src/kv/codec/code_groups.h"

namespace oscar::q8_0 {
namespace {

struct Block {
  static constexpr std::size_t kValues = 32, kBytes = 34;

  static bool Encode(const float* x, std::byte* block) {
    float largest = 0;
    for (std::size_t i = 0; i < kValues; ++i) largest = std::max(largest, std::abs(x[i]));
    const double d = static_cast<double>(largest) / 127.0;  // double: no rounding decides a tie
    const uint16_t d_f16 = base::F16FromF32(static_cast<float>(d));
    codec::StoreF16(d_f16, block);
    for (std::size_t i = 0; i < kValues; ++i) {
      const double code = d_f16 == 0 ? 0.0 : std::round(static_cast<double>(x[i]) / d);
      block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(code));
    }
    return std::isfinite(base::F32FromF16(d_f16));
  }
  static void Decode(const std::byte* block, float* x) {
    const float scale = codec::LoadF16(block);
    for (std::size_t i = 0; i < kValues; ++i) x[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
};

using Rows = codec::BlockRows<Block>;

}  // namespace

std::size_t PageBytes(int head_dim) { return Rows::PageBytes(head_dim); }
const kernels::RowCodec& Codec() { return Rows::Codec(); }
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) { return Rows::MakeProfile(method, shape); }

}  // namespace oscar::q8_0
