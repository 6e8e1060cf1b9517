// Bytes of a 64-token page of a unit of two; d channels, n boosted:
//   K  2 d     first page: scales fp16 [d]; second page: minima fp16 [d]
//      d / 2   channel map: the row of a channel in the high plane, or n for a channel without one; channels 0 .. d / 2 - 1 in the
//              first page, the others in the second
//      16 d    low plane [d]: the low two bits of the 64 tokens of a channel, the first token in the lowest bits
//      16 n    high plane [n]: the high two bits of the boosted channels
//   V  64 rows: codes of d / 4 bytes, channel 0 in the lowest bits; scale fp16, offset fp16
// Channel score: mean over the unit of |k|; ties go to the lower channel. s = max(max - min, 1e-6) / L with L = 15 or 3; halves
// are rounded up.
#include "src/kv/codec/kitty/kitty.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"

namespace oscar::kitty {
namespace {

constexpr int kMaxChannels = 128;
constexpr int kPlaneBits = 2;
constexpr std::size_t kPlaneBytes = codec::CodeBytes(kPlaneBits, kPageTokens);  // of a channel
constexpr float kSmallestRange = 1e-6f;
constexpr int kUnitTokens = 2 * kPageTokens;

template <Boost kBoost>
struct Layout {
  static std::size_t NumBoosted(std::size_t d) { return d / (kBoost == Boost::kEighth ? 8 : 4); }
  static std::size_t MapStart(std::size_t d) { return 2 * d; }
  static std::size_t LowStart(std::size_t d) { return MapStart(d) + d / 2; }
  static std::size_t HighStart(std::size_t d) { return LowStart(d) + kPlaneBytes * d; }
  static std::size_t KeyBytes(std::size_t d) { return HighStart(d) + kPlaneBytes * NumBoosted(d); }
  static std::size_t ValueRowBytes(std::size_t d) { return codec::CodeBytes(kPlaneBits, d) + 4; }

  template <class Byte>
  static Byte* Map(const kernels::UnitPages<Byte>& unit, std::size_t channel, std::size_t d) {
    return unit.pages[channel < d / 2 ? 0 : 1] + MapStart(d) + channel % (d / 2);
  }
  template <class Byte>
  static Byte* LowPlane(const kernels::UnitPages<Byte>& unit, int token, std::size_t channel, std::size_t d) {
    return unit.pages[token / kPageTokens] + LowStart(d) + channel * kPlaneBytes;
  }
  template <class Byte>
  static Byte* HighPlane(const kernels::UnitPages<Byte>& unit, int token, std::size_t row, std::size_t d) {
    return unit.pages[token / kPageTokens] + HighStart(d) + row * kPlaneBytes;
  }
  template <class Byte>
  static Byte* ValueRow(const kernels::UnitPages<Byte>& unit, int token, std::size_t d) {
    return unit.pages[token / kPageTokens] + KeyBytes(d) + static_cast<std::size_t>(token % kPageTokens) * ValueRowBytes(d);
  }

  // Row of each channel in the high plane; NumBoosted where it has none.
  static std::array<std::size_t, kMaxChannels> BoostRows(const float* rows, std::size_t d) {
    std::array<double, kMaxChannels> scores{};
    for (std::size_t t = 0; t < kUnitTokens; ++t) {
      for (std::size_t c = 0; c < d; ++c) scores[c] += static_cast<double>(std::abs(rows[t * d + c]));
    }
    std::array<std::size_t, kMaxChannels> order;
    std::iota(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(d), std::size_t{0});
    std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(d),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    const std::size_t boosted = NumBoosted(d);
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(boosted));
    std::array<std::size_t, kMaxChannels> row_of;
    row_of.fill(boosted);
    for (std::size_t row = 0; row < boosted; ++row) row_of[order[row]] = row;
    return row_of;
  }

  static int EncodeKeys(std::size_t d, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const std::size_t boosted = NumBoosted(d);
    const std::array<std::size_t, kMaxChannels> row_of = BoostRows(rows, d);
    for (std::byte* page : unit.pages) std::fill_n(page + LowStart(d), kPlaneBytes * (d + boosted), std::byte{0});
    for (std::size_t c = 0; c < d; ++c) {
      const std::size_t row = row_of[c];
      const codec::GroupGrid grid = codec::EncodeUnrounded(
          {rows + c, kUnitTokens, d}, row < boosted ? 15 : 3, kSmallestRange, codec::HalfRounding::kUp, [&](std::size_t i, unsigned code) {
            const int token = static_cast<int>(i);
            codec::PutCode(kPlaneBits, i % kPageTokens, code & 3, LowPlane(unit, token, c, d));
            if (row < boosted) codec::PutCode(kPlaneBits, i % kPageTokens, code >> 2, HighPlane(unit, token, row, d));
          });
      if (!grid.fits()) return 0;
      codec::StoreF16(grid.scale_f16, unit.pages[0] + 2 * c);
      codec::StoreF16(grid.offset_f16, unit.pages[1] + 2 * c);
      *Map(unit, c, d) = static_cast<std::byte>(row);
    }
    return -1;
  }

  static int EncodeValues(std::size_t d, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    for (int token = 0; token < kUnitTokens; ++token, rows += d) {
      std::byte* row = ValueRow(unit, token, d);
      std::fill_n(row, codec::CodeBytes(kPlaneBits, d), std::byte{0});
      const codec::GroupGrid grid =
          codec::EncodeHalfUp({rows, d, 1}, 3, [&](std::size_t c, unsigned code) { codec::PutCode(kPlaneBits, c, code, row); });
      if (!grid.fits()) return token;
      codec::StoreF16(grid.scale_f16, row + codec::CodeBytes(kPlaneBits, d));
      codec::StoreF16(grid.offset_f16, row + codec::CodeBytes(kPlaneBits, d) + 2);
    }
    return -1;
  }

  static int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const auto d = static_cast<std::size_t>(head_dim);
    return side == KvSide::kKey ? EncodeKeys(d, rows, unit) : EncodeValues(d, rows, unit);
  }

  static void ReadKeys(std::size_t d, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    const std::size_t boosted = NumBoosted(d);
    const std::size_t first = codec::CodeBytes(kPlaneBits, static_cast<std::size_t>(token % kPageTokens));
    for (std::size_t c = 0; c < d; ++c) {
      const float scale = codec::LoadF16(unit.pages[0] + 2 * c), minimum = codec::LoadF16(unit.pages[1] + 2 * c);
      const auto row = std::to_integer<std::size_t>(*Map(unit, c, d));
      const std::byte* low = LowPlane(unit, token, c, d) + first;
      const std::byte* high = row < boosted ? HighPlane(unit, token, row, d) + first : nullptr;
      for (std::size_t j = 0; j < kernels::kRowTileTokens; ++j) {
        unsigned code = codec::GetCode(kPlaneBits, j, low);
        if (high != nullptr) code |= codec::GetCode(kPlaneBits, j, high) << 2;
        rows[j * d + c] = minimum + scale * static_cast<float>(code);
      }
    }
  }

  static void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    const auto d = static_cast<std::size_t>(head_dim);
    if (side == KvSide::kKey) {
      ReadKeys(d, unit, token, rows);
      return;
    }
    for (int j = 0; j < kernels::kRowTileTokens; ++j, rows += d) {
      const std::byte* row = ValueRow(unit, token + j, d);
      const std::byte* grid = row + codec::CodeBytes(kPlaneBits, d);
      const float scale = codec::LoadF16(grid), offset = codec::LoadF16(grid + 2);
      for (std::size_t c = 0; c < d; ++c) rows[c] = offset + scale * static_cast<float>(codec::GetCode(kPlaneBits, c, row));
    }
  }
};

template <Boost kBoost>
constexpr kernels::RowCodec kCodec{.unit_tokens = kUnitTokens, .encode = Layout<kBoost>::Encode, .read_tile = Layout<kBoost>::ReadTile};

}  // namespace

template <Boost kBoost>
std::size_t PageBytes(int head_dim) {
  const auto d = static_cast<std::size_t>(head_dim);
  return Layout<kBoost>::KeyBytes(d) + kPageTokens * Layout<kBoost>::ValueRowBytes(d);
}
template <Boost kBoost>
const kernels::RowCodec& Codec() {
  return kCodec<kBoost>;
}
template std::size_t PageBytes<Boost::kEighth>(int);
template std::size_t PageBytes<Boost::kQuarter>(int);
template const kernels::RowCodec& Codec<Boost::kEighth>();
template const kernels::RowCodec& Codec<Boost::kQuarter>();

Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) {
  if (shape.head_dim > kMaxChannels) {
    return {StatusCode::kUnsupported, method.name() + " is implemented for head dimensions up to 128, not " + std::to_string(shape.head_dim)};
  }
  return codec::SharedTransformProfile(method, shape, KvTransform::Identity(shape.head_dim), KvTransform::Identity(shape.head_dim));
}

}  // namespace oscar::kitty
