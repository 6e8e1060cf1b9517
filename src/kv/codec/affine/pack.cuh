// Rows of a page to the code words of the 2-bit block (device_layout.h), straight in registers. Key
// rows: lane (G, t) holds, of two tokens, the dimensions 64 h + 16 f + 4 t .. + 3, which are whole
// words of the block. Value words hold 16 tokens, so their values come transposed from shared
// memory, with the grids of the tokens beside.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/encode.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::device {

namespace ptx = oscar::kernels::cuda::ptx;

// The field f that register pair n of a row G holds: rows 1, 3, 5, 7 begin with f = 2, so that the
// rows of a half warp read different banks of a page whose 16-byte pieces are XORed with G.
__device__ __forceinline__ int FieldOf(int n, int row) { return n ^ (2 * (row & 1)); }

// Values of token G + 8 a of a tile for lane (G, t): values[8 h + 2 n], [8 h + 2 n + 1] are the
// dimensions 64 h + 16 FieldOf(n) + 4 t .. + 3. tile_row: shared address of the token's row.
template <int D>
__device__ __forceinline__ void LoadRowValues(uint32_t tile_row, int row, int t,
                                              uint32_t (&values)[D / 8]) {
#pragma unroll
  for (int h = 0; h < D / 64; ++h) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int piece = 8 * h + ((2 * FieldOf(n, row) + (t >> 1)) ^ row);
      const uint2 pair = ptx::LoadShared8(tile_row + 16 * piece + 8 * (t & 1));
      values[8 * h + 2 * n] = pair.x;
      values[8 * h + 2 * n + 1] = pair.y;
    }
  }
}

// The code word of half h of a key row: byte e, field f = code of dimension 64 h + 16 f + 4 t + e.
template <int D>
__device__ __forceinline__ uint32_t KeyWord(const uint32_t (&values)[D / 8], int h, int row,
                                            const DeviceGrid& grid) {
  uint32_t fields[4];  // of register pair n: codes in the low bits of the bytes, 0x4A on top
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const uint32_t low = values[8 * h + 2 * n], high = values[8 * h + 2 * n + 1];
    const float shift = grid.shift, unit = grid.quarter_reciprocal;
    fields[n] = LevelOf(HighValue(high), shift, unit);
    fields[n] = fields[n] * 256 + LevelOf(LowValue(high), shift, unit);
    fields[n] = fields[n] * 256 + LevelOf(HighValue(low), shift, unit);
    fields[n] = fields[n] * 256 + LevelOf(LowValue(low), shift, unit);
  }
  // Pairs 0 and 2 hold fields 0 and 2, pairs 1 and 3 fields 1 and 3, the other way round in odd
  // rows.
  const uint32_t first = (row & 1) ? 16 : 1, second = 17 - first;
  constexpr uint32_t kTops = 0u - 17u * kLevelBits;
  const uint32_t even = SettleCodes(fields[0] * first + (fields[2] * second + kTops));
  const uint32_t odd = SettleCodes(fields[1] * first + (fields[3] * second + kTops));
  return even + odd * 4;
}

// What PackValueWord needs of the 16 tokens 8 k + 2 t + e of a lane: (shift, quarter reciprocal)
// for e = 0 and 1.
struct ValueGrids {
  float4 of_pair[8];
};

// The word of value dimension `dim` (piece = dim / 8, G = dim % 8) of a lane: bits 2 k + 16 e =
// code of token 8 k + 2 t + e. values: shared address of the 64 rows of 2 D bytes. thresholds:
// null, or [64] bf16 patterns to clip the tokens with.
template <int D>
__device__ __forceinline__ uint32_t ValueWord(uint32_t values, int piece, int lane,
                                              const ValueGrids& grids, const uint16_t* thresholds) {
  uint32_t pairs[8];
  const int in_matrix = lane & 7;
  const uint32_t address =
      values + lane * (2 * D) +
      (((piece & ~7) | ((piece & 7) ^ in_matrix)) << 4);  // row 8 (lane / 8) + in_matrix
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    uint32_t r[4];
    ptx::LoadMatrixTransposed(r, address + q * 32 * (2 * D));
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[4 * q + i] = r[i];
  }
  if (thresholds != nullptr) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      pairs[k] = ClipPair(pairs[k],
                          *reinterpret_cast<const uint32_t*>(thresholds + 8 * k + 2 * (lane & 3)));
    }
  }
  uint32_t nibbles[2];  // of even and odd k: codes 4 (k >> 1) + 16 e
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    uint32_t word = 0;
#pragma unroll
    for (int e = 1; e >= 0; --e) {
#pragma unroll
      for (int k = 6 + odd; k >= 0; k -= 2) {
        const float4& grid = grids.of_pair[k];
        const uint32_t level = e == 1 ? LevelOf(HighValue(pairs[k]), grid.z, grid.w)
                                      : LevelOf(LowValue(pairs[k]), grid.x, grid.y);
        word = word * 16 + level;
      }
    }
    nibbles[odd] = SettleCodes(word - 17u * kLevelBits);
  }
  return nibbles[0] + nibbles[1] * 4;
}

}  // namespace oscar::affine::device
