// Page: 64 rows of K, then 64 rows of V. K row: bit string of indices, norm fp16. V row: bit string of codes, scale fp16, offset
// fp16. Key, already times H_D: n = |y|, index = nearest centroid to y_i sqrt(d) / (n + 1e-8), read back as n c / |c|.
#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"
#include "src/kv/codec/turboquant/codebook.h"
#include "src/kv/codec/turboquant/turboquant.h"

namespace oscar::turboquant {
namespace {

template <int kKeyBits, int kValueBits>
struct Rows {
  static std::size_t KeyBytes(std::size_t d) { return codec::CodeBytes(kKeyBits, d) + 2; }
  static std::size_t ValueBytes(std::size_t d) { return codec::CodeBytes(kValueBits, d) + 4; }
  static std::size_t Start(KvSide side, int token, std::size_t d) {
    const auto t = static_cast<std::size_t>(token);
    return side == KvSide::kKey ? t * KeyBytes(d) : kPageTokens * KeyBytes(d) + t * ValueBytes(d);
  }

  static bool EncodeKey(const float* y, std::size_t d, std::byte* row) {
    double power = 0;
    for (std::size_t c = 0; c < d; ++c) power += static_cast<double>(y[c]) * static_cast<double>(y[c]);
    const double norm = std::sqrt(power);
    const double to_codebook = std::sqrt(static_cast<double>(d)) / (norm + 1e-8);
    std::fill_n(row, KeyBytes(d), std::byte{0});
    for (std::size_t c = 0; c < d; ++c) {
      codec::PutCode(kKeyBits, c, NearestCentroid<kKeyBits>(static_cast<float>(static_cast<double>(y[c]) * to_codebook)), row);
    }
    const uint16_t norm_f16 = base::F16FromF32(static_cast<float>(norm));
    codec::StoreF16(norm_f16, row + codec::CodeBytes(kKeyBits, d));
    return std::isfinite(base::F32FromF16(norm_f16));
  }

  static bool EncodeValue(const float* y, std::size_t d, std::byte* row) {
    const std::size_t code_bytes = codec::CodeBytes(kValueBits, d);
    std::fill_n(row, code_bytes, std::byte{0});
    const codec::GroupGrid grid = codec::EncodeHalfUp({y, d, 1}, (1 << kValueBits) - 1,
                                                      [&](std::size_t c, unsigned code) { codec::PutCode(kValueBits, c, code, row); });
    codec::StoreF16(grid.scale_f16, row + code_bytes);
    codec::StoreF16(grid.offset_f16, row + code_bytes + 2);
    return grid.fits();
  }

  static int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const auto d = static_cast<std::size_t>(head_dim);
    for (int t = 0; t < kPageTokens; ++t, rows += d) {
      std::byte* row = unit.pages[0] + Start(side, t, d);
      if (!(side == KvSide::kKey ? EncodeKey(rows, d, row) : EncodeValue(rows, d, row))) return t;
    }
    return -1;
  }

  static void ReadKey(const std::byte* row, std::size_t d, float* y) {
    double power = 0;
    for (std::size_t c = 0; c < d; ++c) {
      y[c] = Centroid<kKeyBits>(codec::GetCode(kKeyBits, c, row));
      power += static_cast<double>(y[c]) * static_cast<double>(y[c]);
    }
    const auto factor = static_cast<float>(static_cast<double>(codec::LoadF16(row + codec::CodeBytes(kKeyBits, d))) / std::sqrt(power));
    for (std::size_t c = 0; c < d; ++c) y[c] *= factor;
  }

  static void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    const auto d = static_cast<std::size_t>(head_dim);
    for (int j = 0; j < kernels::kRowTileTokens; ++j, rows += d) {
      const std::byte* row = unit.pages[0] + Start(side, token + j, d);
      if (side == KvSide::kKey) {
        ReadKey(row, d, rows);
        continue;
      }
      const std::byte* grid = row + codec::CodeBytes(kValueBits, d);
      const float scale = codec::LoadF16(grid), offset = codec::LoadF16(grid + 2);
      for (std::size_t c = 0; c < d; ++c) rows[c] = offset + scale * static_cast<float>(codec::GetCode(kValueBits, c, row));
    }
  }
};

template <int kKeyBits, int kValueBits>
constexpr kernels::RowCodec kVllmCodec{
    .rounds_rows = false, .encode = Rows<kKeyBits, kValueBits>::Encode, .read_tile = Rows<kKeyBits, kValueBits>::ReadTile};

}  // namespace

template <int kKeyBits, int kValueBits>
std::size_t VllmPageBytes(int head_dim) {
  using Layout = Rows<kKeyBits, kValueBits>;
  return kPageTokens * (Layout::KeyBytes(static_cast<std::size_t>(head_dim)) + Layout::ValueBytes(static_cast<std::size_t>(head_dim)));
}
template <int kKeyBits, int kValueBits>
const kernels::RowCodec& VllmCodec() {
  return kVllmCodec<kKeyBits, kValueBits>;
}

template std::size_t VllmPageBytes<3, 3>(int);
template std::size_t VllmPageBytes<4, 4>(int);
template std::size_t VllmPageBytes<3, 4>(int);
template const kernels::RowCodec& VllmCodec<3, 3>();
template const kernels::RowCodec& VllmCodec<4, 4>();
template const kernels::RowCodec& VllmCodec<3, 4>();

Result<CodecProfile> MakeVllmProfile(const KvMethod& method, const KvShape& shape) {
  auto key = KvTransform::Hadamard(shape.head_dim);
  if (!key.ok()) return key.status().WithContext(method.name());
  return codec::SharedTransformProfile(method, shape, *std::move(key), KvTransform::Identity(shape.head_dim));
}

}  // namespace oscar::turboquant
