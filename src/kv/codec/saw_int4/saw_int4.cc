// Page: 64 rows of K, then 64 rows of V; a row is d / 2 bytes of codes (channel i in the low nibble of byte i, channel i + d / 2
// in the high one), scale fp16, offset fp16.
#include "src/kv/codec/saw_int4/saw_int4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"

namespace oscar::saw_int4 {
namespace {

constexpr int kLargestCode = 15;

std::size_t RowBytes(int head_dim) { return static_cast<std::size_t>(head_dim) / 2 + 4; }
std::size_t RowStart(KvSide side, int token, int head_dim) {
  return static_cast<std::size_t>((side == KvSide::kKey ? 0 : kPageTokens) + token) * RowBytes(head_dim);
}

int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
  const auto d = static_cast<std::size_t>(head_dim);
  for (int t = 0; t < kPageTokens; ++t) {
    std::byte* row = unit.pages[0] + RowStart(side, t, head_dim);
    std::fill_n(row, d / 2, std::byte{0});
    const codec::GroupGrid grid = codec::EncodeHalfUp({rows + static_cast<std::size_t>(t) * d, d, 1}, kLargestCode, [&](std::size_t c, unsigned code) {
      row[c % (d / 2)] |= static_cast<std::byte>(c < d / 2 ? code : code << 4);
    });
    if (!grid.fits()) return t;
    codec::StoreF16(grid.scale_f16, row + d / 2);
    codec::StoreF16(grid.offset_f16, row + d / 2 + 2);
  }
  return -1;
}

void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
  const auto half = static_cast<std::size_t>(head_dim) / 2;
  for (int j = 0; j < kernels::kRowTileTokens; ++j, rows += head_dim) {
    const std::byte* row = unit.pages[0] + RowStart(side, token + j, head_dim);
    const float scale = codec::LoadF16(row + half), offset = codec::LoadF16(row + half + 2);
    for (std::size_t i = 0; i < half; ++i) {
      const int codes = std::to_integer<int>(row[i]);
      rows[i] = offset + scale * static_cast<float>(codes & 15);
      rows[i + half] = offset + scale * static_cast<float>(codes >> 4);
    }
  }
}

constexpr kernels::RowCodec kCodec{.encode = Encode, .read_tile = ReadTile};

// Sylvester blocks of `order` along the diagonal. One block is a Hadamard transform, which has its own fast form.
Result<KvTransform> BlockHadamard(int head_dim, int order) {
  if (head_dim == order) return KvTransform::Hadamard(head_dim);
  const auto d = static_cast<std::size_t>(head_dim), n = static_cast<std::size_t>(order);
  std::vector<float> matrix(d * d, 0.0f);
  const float unit = static_cast<float>(1.0 / std::sqrt(static_cast<double>(order)));
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = i / n * n; j < i / n * n + n; ++j) matrix[i * d + j] = std::popcount(i % n & j % n) % 2 == 0 ? unit : -unit;
  }
  return KvTransform::Orthogonal(head_dim, std::move(matrix));
}

}  // namespace

std::size_t PageBytes(int head_dim) { return 2 * kPageTokens * RowBytes(head_dim); }
const kernels::RowCodec& Codec() { return kCodec; }

Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) {
  const int order = std::stoi(method.method.substr(1));  // one of kMethodNames
  OSCAR_TRY(codec::CheckHeadDim(method, shape.head_dim, order));
  OSCAR_ASSIGN_OR_RETURN(KvTransform key, BlockHadamard(shape.head_dim, order));
  return codec::SharedTransformProfile(method, shape, std::move(key), KvTransform::Identity(shape.head_dim));
}

}  // namespace oscar::saw_int4
