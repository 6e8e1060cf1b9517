// Page: 64 rows of K, then 64 rows of V; a row is d / 32 blocks of 18 bytes: d_16 fp16, then 16 bytes of codes, elements 0 .. 15
// of the block in the low nibbles and 16 .. 31 in the high ones.
//   m = the element of largest magnitude, the first on ties;  d = m / -8;  q = min(15, trunc(x / d + 8.5));  x_hat = (q - 8) d_16
#include "src/kv/codec/q4_0/q4_0.h"

#include <algorithm>
#include <cmath>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"

namespace oscar::q4_0 {
namespace {

constexpr std::size_t kBlock = 32, kBlockBytes = 18;

std::size_t RowBytes(int head_dim) { return static_cast<std::size_t>(head_dim) / kBlock * kBlockBytes; }
std::size_t RowStart(KvSide side, int token, int head_dim) {
  return static_cast<std::size_t>((side == KvSide::kKey ? 0 : kPageTokens) + token) * RowBytes(head_dim);
}

bool EncodeBlock(const float* x, std::byte* block) {
  float extreme = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  }
  const float d = extreme / -8.0f + 0.0f;  // no negative zero
  const uint16_t d_f16 = base::F16FromF32(d);
  // A scale that fp16 rounds to 0 reads back as 0 whatever the codes.
  const float inverse = (d_f16 & 0x7FFF) == 0 ? 0.0f : 1.0f / d;
  codec::StoreF16(d_f16, block);
  const auto code = [&](std::size_t i) { return static_cast<unsigned>(std::min(15, static_cast<int>(x[i] * inverse + 8.5f))); };
  for (std::size_t i = 0; i < kBlock / 2; ++i) block[2 + i] = static_cast<std::byte>(code(i) | code(i + kBlock / 2) << 4);
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
    for (int c = 0; c < head_dim; c += static_cast<int>(kBlock), block += kBlockBytes, rows += kBlock) {
      const float scale = codec::LoadF16(block);
      for (std::size_t i = 0; i < kBlock / 2; ++i) {
        const int codes = std::to_integer<int>(block[2 + i]);
        rows[i] = scale * static_cast<float>((codes & 15) - 8);
        rows[i + kBlock / 2] = scale * static_cast<float>((codes >> 4) - 8);
      }
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

}  // namespace oscar::q4_0
