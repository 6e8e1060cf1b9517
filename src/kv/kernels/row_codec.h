// A codec in plain C++: whole rows in, whole rows out. The compared methods are written this way, each in its obvious form; the
// attention loops read them 16 rows at a time through one reader (cpu/row_reader-inl.h), never a page at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oscar/types.h"

namespace oscar::kernels {

// Most tokens that a codec encodes together: two pages.
inline constexpr int kMaxUnitTokens = 2 * kPageTokens;
// Most values that a codec encodes together: heads_together * unit_tokens * head_dim.
inline constexpr int kMaxRowValues = kMaxUnitTokens * 256;
// Tokens that are read at a time.
inline constexpr int kRowTileTokens = 16;

// The encoded bytes of one KV head in the pages of an encode unit: one page, or two where 128 tokens share metadata.
template <class Byte>
struct UnitPages {
  Byte* pages[2] = {};  // the second is null for a unit of one page
  int head = 0;         // to be read, of the heads encoded together; `pages` are those of the first of them
  std::span<const uint16_t> channel_order;  // RowProfile::channel_order of the first of them; empty: as they are
};

struct RowCodec {
  int unit_tokens = kPageTokens;  // 64 or 128: CodecInfo::encode_tokens
  // KV heads that are encoded together: rows of `encode` are [heads, unit_tokens, d], their pages lie behind each other.
  int heads_together = 1;
  bool turns_keys_back = false;   // keys are encoded as they were before RoPE, and turned again by who reads them
  bool rounds_rows = true;        // transformed rows are rounded to bf16 before they are encoded
  // Encodes rows [heads_together, unit_tokens, d] f32 (finite, in code space) of one side. Returns the first token whose row cannot be encoded
  // (a scale beyond fp16), or -1 when all were.
  int (*encode)(KvSide side, int head_dim, const float* rows, const UnitPages<std::byte>& unit) = nullptr;
  // rows [kRowTileTokens, d] f32 = tokens token .. token + 15 of the unit, token a multiple of that, in code space.
  void (*read_tile)(KvSide side, int head_dim, const UnitPages<const std::byte>& unit, int token, float* rows) = nullptr;
};

}  // namespace oscar::kernels
