// Page layout of ggml's block types, shared by the codecs of llama.cpp's KV types: 64 rows of K, then 64 rows of V; a row is d / 32
// blocks. Block: kValues (32), kBytes, bool Encode(const float* x, std::byte* block), false when a number does not fit, and
// void Decode(const std::byte* block, float* x), each for 32 values.
#pragma once

#include <cstddef>

#include "src/base/status_macros.h"
#include "src/kv/codec/row_kernels.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::codec {

template <class Block>
class BlockRows {
 public:
  static std::size_t PageBytes(int head_dim) { return 2 * kPageTokens * RowBytes(head_dim); }
  static const kernels::RowCodec& Codec() {
    static constexpr kernels::RowCodec kCodec{.encode = Encode, .read_tile = ReadTile};
    return kCodec;
  }
  // kUnsupported unless the head dimension is a multiple of 32.
  static Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape) {
    OSCAR_TRY(CheckHeadDim(method, shape.head_dim, kBlock));
    return SharedTransformProfile(method, shape, KvTransform::Identity(shape.head_dim), KvTransform::Identity(shape.head_dim));
  }

 private:
  static constexpr std::size_t kBlock = Block::kValues;

  static std::size_t RowBytes(int head_dim) { return static_cast<std::size_t>(head_dim) / kBlock * Block::kBytes; }
  static std::size_t RowStart(KvSide side, int token, int head_dim) {
    return static_cast<std::size_t>((side == KvSide::kKey ? 0 : kPageTokens) + token) * RowBytes(head_dim);
  }

  static int Encode(KvSide side, int head_dim, const float* rows, const kernels::UnitPages<std::byte>& unit) {
    const auto d = static_cast<std::size_t>(head_dim);
    for (int t = 0; t < kPageTokens; ++t) {
      std::byte* row = unit.pages[0] + RowStart(side, t, head_dim);
      for (std::size_t b = 0; b < d / kBlock; ++b) {
        if (!Block::Encode(rows + static_cast<std::size_t>(t) * d + b * kBlock, row + b * Block::kBytes)) return t;
      }
    }
    return -1;
  }

  static void ReadTile(KvSide side, int head_dim, const kernels::UnitPages<const std::byte>& unit, int token, float* rows) {
    for (int j = 0; j < kernels::kRowTileTokens; ++j) {
      const std::byte* block = unit.pages[0] + RowStart(side, token + j, head_dim);
      for (int c = 0; c < head_dim; c += static_cast<int>(kBlock), block += Block::kBytes, rows += kBlock) Block::Decode(block, rows);
    }
  }
};

}  // namespace oscar::codec
