// Bytes of a 64-token page, G tokens and g channels a group:
//   K  scales and minima fp16 [64 / G][d] each for G <= 64; for G = 128 the first page of the unit holds the scales [d] and the second the minima [d]
//      codes [d][16 bytes]: the 64 tokens of a channel, the first in the lowest bits
//   V  64 rows: codes of d / 4 bytes, channel 0 in the lowest bits; then scale and minimum fp16 of each of the d / g groups
// s = (max - min) / 3, code = round_even(clamp((x - min) / s, 0, 3)) with s and min before their rounding.
#include "src/kv/codec/kivi/kivi.h"

#include <algorithm>

#include "src/base/status_macros.h"
#include "src/kv/codec/code_groups.h"
#include "src/kv/codec/row_kernels.h"

namespace oscar::kivi {
namespace {

constexpr int kBits = 2, kLargestCode = 3;
constexpr std::size_t kChannelBytes = codec::CodeBytes(kBits, kPageTokens);

template <int kGroupTokens>
struct Layout {
  static constexpr int kUnitTokens = kGroupTokens > kPageTokens ? kGroupTokens : kPageTokens;
  static constexpr int kGroups = kUnitTokens / kGroupTokens;  // of a unit
  static std::size_t GroupChannels(std::size_t d) { return kGroupTokens > kPageTokens ? d : 32; }

  static std::size_t KeyMetadataBytes(std::size_t d) { return kGroupTokens > kPageTokens ? 2 * d : 4 * kGroups * d; }
  static std::size_t KeyBytes(std::size_t d) { return KeyMetadataBytes(d) + d * kChannelBytes; }
  static std::size_t ValueRowBytes(std::size_t d) { return codec::CodeBytes(kBits, d) + 4 * (d / GroupChannels(d)); }

  // Scale and minimum of a channel in a group of the unit.
  template <class Byte>
  static Byte* Scale(const kernels::UnitPages<Byte>& unit, std::size_t group, std::size_t channel, std::size_t d) {
    return unit.pages[0] + 2 * (group * d + channel);
  }
  template <class Byte>
  static Byte* Minimum(const kernels::UnitPages<Byte>& unit, std::size_t group, std::size_t channel, std::size_t d) {
    return kGroupTokens > kPageTokens ? unit.pages[1] + 2 * channel : unit.pages[0] + 2 * ((kGroups + group) * d + channel);
  }
  template <class Byte>
  static Byte* ChannelCodes(const kernels::UnitPages<Byte>& unit, int token, std::size_t channel, std::size_t d) {
    return unit.pages[token / kPageTokens] + KeyMetadataBytes(d) + channel * kChannelBytes;
  }
  template <class Byte>
  static Byte* ValueRow(const kernels::UnitPages<Byte>& unit, int token, std::size_t d) {
    return unit.pages[token / kPageTokens] + KeyBytes(d) + static_cast<std::size_t>(token % kPageTokens) * ValueRowBytes(d);
  }

  static int EncodeKeys(std::size_t d, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    for (int page = 0; page < kUnitTokens / kPageTokens; ++page) {
      std::fill_n(ChannelCodes(unit, page * kPageTokens, 0, d), d * kChannelBytes, std::byte{0});
    }
    for (std::size_t group = 0; group < kGroups; ++group) {
      const std::size_t first = group * kGroupTokens;
      for (std::size_t c = 0; c < d; ++c) {
        const codec::GroupGrid grid = codec::EncodeUnrounded(
            {rows + first * d + c, kGroupTokens, d}, kLargestCode, 0.0f, codec::HalfRounding::kEven, [&](std::size_t i, unsigned code) {
              const int token = static_cast<int>(first + i);
              codec::PutCode(kBits, static_cast<std::size_t>(token % kPageTokens), code, ChannelCodes(unit, token, c, d));
            });
        if (!grid.fits()) return static_cast<int>(first);
        codec::StoreF16(grid.scale_f16, Scale(unit, group, c, d));
        codec::StoreF16(grid.offset_f16, Minimum(unit, group, c, d));
      }
    }
    return -1;
  }

  static int EncodeValues(std::size_t d, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const std::size_t group_channels = GroupChannels(d), code_bytes = codec::CodeBytes(kBits, d);
    for (int token = 0; token < kUnitTokens; ++token, rows += d) {
      std::byte* row = ValueRow(unit, token, d);
      std::fill_n(row, code_bytes, std::byte{0});
      for (std::size_t c = 0; c < d; c += group_channels) {
        const codec::GroupGrid grid =
            codec::EncodeUnrounded({rows + c, group_channels, 1}, kLargestCode, 0.0f, codec::HalfRounding::kEven,
                                   [&](std::size_t i, unsigned code) { codec::PutCode(kBits, c + i, code, row); });
        if (!grid.fits()) return token;
        std::byte* metadata = row + code_bytes + 4 * (c / group_channels);
        codec::StoreF16(grid.scale_f16, metadata);
        codec::StoreF16(grid.offset_f16, metadata + 2);
      }
    }
    return -1;
  }

  static int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const auto d = static_cast<std::size_t>(head_dim);
    return side == KvSide::kKey ? EncodeKeys(d, rows, unit) : EncodeValues(d, rows, unit);
  }

  static void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    const auto d = static_cast<std::size_t>(head_dim);
    if (side == KvSide::kKey) {
      const auto group = static_cast<std::size_t>(token / kGroupTokens);
      for (std::size_t c = 0; c < d; ++c) {
        const float scale = codec::LoadF16(Scale(unit, group, c, d)), minimum = codec::LoadF16(Minimum(unit, group, c, d));
        const std::byte* codes = ChannelCodes(unit, token, c, d) + codec::CodeBytes(kBits, static_cast<std::size_t>(token % kPageTokens));
        for (std::size_t j = 0; j < kernels::kRowTileTokens; ++j) {
          rows[j * d + c] = minimum + scale * static_cast<float>(codec::GetCode(kBits, j, codes));
        }
      }
      return;
    }
    const std::size_t group_channels = GroupChannels(d);
    for (int j = 0; j < kernels::kRowTileTokens; ++j, rows += d) {
      const std::byte* row = ValueRow(unit, token + j, d);
      for (std::size_t c = 0; c < d; c += group_channels) {
        const std::byte* metadata = row + codec::CodeBytes(kBits, d) + 4 * (c / group_channels);
        const float scale = codec::LoadF16(metadata), minimum = codec::LoadF16(metadata + 2);
        for (std::size_t i = c; i < c + group_channels; ++i) rows[i] = minimum + scale * static_cast<float>(codec::GetCode(kBits, i, row));
      }
    }
  }
};

template <int kGroupTokens>
constexpr kernels::RowCodec kCodec{.unit_tokens = Layout<kGroupTokens>::kUnitTokens,
                                   .encode = Layout<kGroupTokens>::Encode,
                                   .read_tile = Layout<kGroupTokens>::ReadTile};

}  // namespace

template <int kGroupTokens>
std::size_t PageBytes(int head_dim) {
  const auto d = static_cast<std::size_t>(head_dim);
  return Layout<kGroupTokens>::KeyBytes(d) + kPageTokens * Layout<kGroupTokens>::ValueRowBytes(d);
}
template <int kGroupTokens>
const kernels::RowCodec& Codec() {
  return kCodec<kGroupTokens>;
}
template std::size_t PageBytes<32>(int);
template std::size_t PageBytes<64>(int);
template std::size_t PageBytes<128>(int);
template const kernels::RowCodec& Codec<32>();
template const kernels::RowCodec& Codec<64>();
template const kernels::RowCodec& Codec<128>();

Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) {
  OSCAR_TRY(codec::CheckHeadDim(method, shape.head_dim, 32));
  return codec::SharedTransformProfile(method, shape, KvTransform::Identity(shape.head_dim), KvTransform::Identity(shape.head_dim));
}

}  // namespace oscar::kivi
