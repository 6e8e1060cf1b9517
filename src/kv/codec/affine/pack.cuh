// Codes of a page to the 2-bit block in shared memory (device_layout.h). Eight lanes share a row; lane p has pieces of
// eight dimensions p, p + 8, ...: codes [piece][half of the piece] as four bytes a word.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/encode.cuh"

namespace oscar::affine::device {

// Stores the key codes of one token. All lanes of the warp take part, each row of 8 with its own token.
template <int D>
__device__ __forceinline__ void PackKeyRow(int token, int lane_in_row, const uint32_t (&codes)[D / 64][2],
                                           uint8_t* block) {
  // Piece p covers words t = 2 (p & 1) and + 1 at field f = (p & 7) >> 1: lanes p, p ^ 2, p ^ 4, p ^ 6 make one word
  // together.
  const int field = lane_in_row >> 1;
  uint32_t words[D / 64][2];
#pragma unroll
  for (int n = 0; n < D / 64; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t word = codes[n][i] << (2 * field);
      word |= __shfl_xor_sync(~0u, word, 2);
      word |= __shfl_xor_sync(~0u, word, 4);
      words[n][i] = word;
    }
  }
  if (field != 0) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int operand_lane = 4 * (token & 7) + 2 * lane_in_row + i;
#pragma unroll
    for (int s = 0; s < D / 128; ++s) {
      uint8_t* target = block + s * 2048 + (token >> 4) * 512 + operand_lane * 16 + ((token >> 3) & 1) * 8;
      *reinterpret_cast<uint2*>(target) = make_uint2(words[2 * s][i], words[2 * s + 1][i]);
    }
    if constexpr (D % 128 != 0) {
      uint8_t* target = block + D / 128 * 2048 + (token >> 5) * 512 + operand_lane * 16 + ((token >> 3) & 3) * 4;
      *reinterpret_cast<uint32_t*>(target) = words[D / 64 - 1][i];
    }
  }
}

// Value codes of the whole page: bytes [64 tokens][stride] in shared memory to words of 16 tokens. One call makes the
// four words of dimensions dim .. dim + 3 (a multiple of 4) for tokens 16 (k >> 1) + 8 (k & 1) + 2 t + e.
template <int D>
__device__ __forceinline__ void PackValueWords(const uint8_t* codes, int stride, int dim, int t, uint8_t* block) {
  uint32_t by_byte[4];  // byte b of the words: bits 8 b .. 8 b + 7 hold k = 4 (b & 1) .. + 3 of e = b >> 1
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = 4 * (b & 1) + i;
      const int token = 16 * (k >> 1) + 8 * (k & 1) + 2 * t + (b >> 1);
      word |= *reinterpret_cast<const uint32_t*>(codes + token * stride + dim) << (2 * i);
    }
    by_byte[b] = word;
  }
  const uint32_t low01 = __byte_perm(by_byte[0], by_byte[1], 0x5140),
                 high01 = __byte_perm(by_byte[0], by_byte[1], 0x7362);
  const uint32_t low23 = __byte_perm(by_byte[2], by_byte[3], 0x5140),
                 high23 = __byte_perm(by_byte[2], by_byte[3], 0x7362);
  const uint32_t words[4] = {__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
                             __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int operand_lane = 4 * ((dim + i) & 7) + t;
    uint8_t* target = block + ValueCodesOffset(D) + (dim >> 5) * 512 + operand_lane * 16 + ((dim >> 3) & 3) * 4;
    *reinterpret_cast<uint32_t*>(target) = words[i];
  }
}

}  // namespace oscar::affine::device
