// Byte geometry of encoded pages on the device (gpu.md 4.1), for host and device code. The order of
// codes inside a block follows the operand registers of the matrix instructions, so that a lane
// reads 16 consecutive bytes without shuffles. The logical order is in layout.h; device_convert.h
// goes from one to the other.
//
// A block is one (page, KV head): K codes, V codes, 64 K pairs, 64 V pairs; a pair is fp16 scale,
// then fp16 offset. Head dimensions are cut into sub-blocks of 128 and one last sub-block of 64 if
// needed. 2-bit codes are the measure of all: a 4-bit code stands as two of them, low then high, in
// two planes of codes one behind the other; 1-bit codes stand as 2-bit ones whose high bits are
// those of the next 512 bytes, so that two such pieces share the room of one.
#pragma once

#include <cstdint>

#include "src/kv/kernels/cuda/row_layout.h"

namespace oscar::affine::device {

inline constexpr int kTokens = 64;

constexpr bool IsHeadDim(int d) { return d == 64 || d == 128 || d == 192 || d == 256; }

// --- 2-bit block: 32 d + 512 bytes (2,560 / 4,608 / 6,656 / 8,704) ---
constexpr int KeyCodesOffset() { return 0; }
constexpr int ValueCodesOffset(int d) { return 16 * d; }
constexpr int KeyPairsOffset(int d) { return 32 * d; }
constexpr int ValuePairsOffset(int d) { return 32 * d + 256; }
constexpr int BlockBytes(int d) { return 32 * d + 512; }

// The same for `bits` of 1, 2 or 4.
constexpr bool IsBits(int bits) { return bits == 1 || bits == 2 || bits == 4; }
constexpr int SideBytes(int bits, int d) { return 8 * bits * d; }  // codes of K or of V
constexpr int KeyPairsOffset(int bits, int d) { return 2 * SideBytes(bits, d); }
constexpr int ValuePairsOffset(int bits, int d) { return 2 * SideBytes(bits, d) + 256; }
constexpr int BlockBytes(int bits, int d) { return 2 * SideBytes(bits, d) + 512; }
constexpr int NumPlanes(int bits) { return bits == 4 ? 2 : 1; }
constexpr int PlaneBits(int bits) { return bits == 1 ? 1 : 2; }

// Where a 2-bit code stands: byte in the block and the position of its low bit in the byte.
struct CodePlace {
  int byte;
  int shift;
};

// K: token tiles of 16 (128 sub-block) or tile pairs of 32 (64 sub-block), 32 lanes x 16 bytes
// each. Lane 4G + t, byte e and field f of a word hold dimension 64 half + 16 f + 4 t + e of its
// token.
constexpr CodePlace KeyCodePlace(int d, int token, int dim) {
  const int sub_block = dim / 128;
  const int base = sub_block * 2048;
  const int inner = dim % 128;
  const int t = (inner >> 2) & 3;
  const int e = inner & 3;
  const int field = (inner >> 4) & 3;
  const int row = token & 7;  // G
  const int lane = 4 * row + t;
  const bool narrow = (sub_block + 1) * 128 > d;
  if (narrow) {
    const int word = (token >> 3) & 3;
    return {base + (token >> 5) * 512 + lane * 16 + word * 4 + e, 2 * field};
  }
  const int half = inner >> 6;
  const int word = 2 * ((token >> 3) & 1) + half;
  return {base + (token >> 4) * 512 + lane * 16 + word * 4 + e, 2 * field};
}

// V: groups of 32 dimensions, 32 lanes x 16 bytes each. Word w of a lane holds dimension 32 u + 8 w
// + G for the tokens 16 (k >> 1) + 8 (k & 1) + 2 t + e at bits 2 k + 16 e.
constexpr CodePlace ValueCodePlace(int d, int token, int dim) {
  const int group = dim >> 5;
  const int word = (dim >> 3) & 3;
  const int row = dim & 7;  // G
  const int t = (token >> 1) & 3;
  const int e = token & 1;
  const int k = 2 * (token >> 4) + ((token >> 3) & 1);
  const int bit = 2 * k + 16 * e;
  return {ValueCodesOffset(d) + group * 512 + (4 * row + t) * 16 + word * 4 + bit / 8, bit % 8};
}

// Bits PlaneBits(bits) * plane .. of a code of `bits` bits: byte from the start of the codes of the
// side, and position in the byte.
constexpr CodePlace PlanePlace(int bits, bool is_key, int d, int token, int dim, int plane) {
  CodePlace place = is_key ? KeyCodePlace(d, token, dim) : ValueCodePlace(d, token, dim);
  if (!is_key) place.byte -= ValueCodesOffset(d);
  if (bits == 1) return {place.byte / 1024 * 512 + place.byte % 512, place.shift + place.byte / 512 % 2};
  return {place.byte + plane * SideBytes(2, d), place.shift};
}

// Index of a token's (scale, offset) pair among the 64: 8 G + 2 j + a for token 16 j + G + 8 a.
constexpr int PairIndex(int token) {
  return 8 * (token & 7) + 2 * (token >> 4) + ((token >> 3) & 1);
}
constexpr int KeyPairOffset(int d, int token) { return KeyPairsOffset(d) + 4 * PairIndex(token); }
constexpr int ValuePairOffset(int d, int token) {
  return ValuePairsOffset(d) + 4 * PairIndex(token);
}

constexpr int KeyPairOffset(int bits, int d, int token) {
  return KeyPairsOffset(bits, d) + 4 * PairIndex(token);
}
constexpr int ValuePairOffset(int bits, int d, int token) {
  return ValuePairsOffset(bits, d) + 4 * PairIndex(token);
}

// BF16 pages, which the same kernels read.
using kernels::cuda::Bf16BlockBytes;
using kernels::cuda::Bf16KeyOffset;
using kernels::cuda::Bf16TileBytes;
using kernels::cuda::Bf16ValueOffset;

// The worked example of gpu.md 4.1: token 21, dimension 77.
static_assert(KeyCodePlace(128, 21, 77).byte == 885 && KeyCodePlace(128, 21, 77).shift == 0);
static_assert(ValueCodePlace(128, 21, 77).byte == 3430 && ValueCodePlace(128, 21, 77).shift == 4);
static_assert(KeyPairOffset(128, 21) == 4264 && ValuePairOffset(128, 21) == 4520);

}  // namespace oscar::affine::device
