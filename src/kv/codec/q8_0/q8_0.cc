// Page: 64 rows of K, then 64 rows of V; a row is d / 32 blocks of 34 bytes: d_16 fp16, then 32 signed bytes.
//   d = max |x| / 127,  q = round_away(x / d) with d before its rounding,  x_hat = q d_16
#include "src/kv/codec/q8_0/q8_0.h"

#include <algorithm>
#include <cmath>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"

namespace oscar::q8_0 {
namespace {

constexpr std::size_t kBlock = 32, kBlockBytes = 34;

std::size_t RowBytes(int head_dim) { return static_cast<std::size_t>(head_dim) / kBlock * kBlockBytes; }
std::size_t RowStart(KvSide side, int token, int head_dim) {
  return static_cast<std::size_t>((side == KvSide::kKey ? 0 : kPageTokens) + token) * RowBytes(head_dim);
}

bool EncodeBlock(const float* x, std::byte* block) {
  float largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const double d = static_cast<double>(largest) / 127.0;  // double: no rounding decides a tie
  const uint16_t d_f16 = base::F16FromF32(static_cast<float>(d));
  codec::StoreF16(d_f16, block);
  for (std::size_t i = 0; i < kBlock; ++i) {
    const double code = d_f16 == 0 ? 0.0 : std::round(static_cast<double>(x[i]) / d);
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(code));
  }
  return std::isfinite(base::F32FromF16(d_f16));
}

int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
  const auto d = static_cast<std::size_t>(head_dim);
  for (int t = 0; t < kPageTokens; ++t) {
    std::byte* row = unit.pages[0] + RowStart(side, t, head_dim);
    for (std::size_t b = 0; b < d / kBlock; ++b) {
      if (!EncodeBlock(rows + static_cast<std::size_t>(t) * d + b * kBlock, row + b * kBlockBytes)) return t;
    }
  }
  return -1;
}

void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
  for (int j = 0; j < kernels::kRowTileTokens; ++j) {
    const std::byte* block = unit.pages[0] + RowStart(side, token + j, head_dim);
    for (int c = 0; c < head_dim; c += static_cast<int>(kBlock), block += kBlockBytes) {
      const float scale = codec::LoadF16(block);
      for (std::size_t i = 0; i < kBlock; ++i) *rows++ = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    }
  }
}

constexpr kernels::RowCodec kCodec{.encode = Encode, .read_tile = ReadTile};

}  // namespace

std::size_t PageBytes(int head_dim) { return 2 * kPageTokens * RowBytes(head_dim); }
const kernels::RowCodec& Codec() { return kCodec; }

Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) {
  OSCAR_TRY(codec::CheckHeadDim(method, shape.head_dim, kBlock));
  return codec::SharedTransformProfile(method, shape, KvTransform::Identity(shape.head_dim), KvTransform::Identity(shape.head_dim));
}

}  // namespace oscar::q8_0
