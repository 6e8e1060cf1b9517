// The min-max encoder of the affine row on the device: method.md 3.1 and 3.2, bit for bit what
// reference.cc and the CPU kernels make of the same bf16 row. Four lanes share a row and a lane
// works on two rows at once; it holds their values as packed pairs of bf16, in any order of the
// dimensions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace oscar::affine::device {

inline constexpr int kRowLanes = 4;

// What a row is stored with, and what its codes are made with.
struct DeviceGrid {
  __half2 pair;              // (scale, offset)
  float shift;               // the offset
  float quarter_reciprocal;  // 1 / (4 scale); 0 for a constant row
  uint32_t threshold;        // bf16 pattern of the clip threshold; 0x7F80 without a clip
  bool is_encodable;         // values are finite, the pair is finite in fp16
  bool needs_clip;  // codes of values beyond the threshold are not 0 and 3 by themselves: clip them
                    // first
};

__device__ __forceinline__ __nv_bfloat162 AsBf16Pair(uint32_t bits) {
  return *reinterpret_cast<__nv_bfloat162*>(&bits);
}
__device__ __forceinline__ uint32_t AsBits(__nv_bfloat162 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t InBothHalves(uint32_t half) { return half * 0x00010001u; }

// Largest and smallest value of a row, as bf16 patterns, complete in all its lanes; not finite when
// any value is not. As unsigned numbers, the largest pattern is the most negative value; as signed
// ones, the largest positive value. Only rows of one sign need more.
struct RowExtremes {
  uint32_t largest, smallest;
};
template <int kPairs>
__device__ __forceinline__ RowExtremes FindExtremes(const uint32_t (&values)[kPairs]) {
  uint32_t positive = values[0], negative = values[0];
#pragma unroll
  for (int i = 1; i + 1 < kPairs; i += 2) {
    positive = __vimax3_s16x2(positive, values[i], values[i + 1]);
    negative = __vimax3_u16x2(negative, values[i], values[i + 1]);
  }
  positive = __vmaxs2(positive, values[kPairs - 1]) ^ 0x80008000u;
  negative = __vmaxu2(negative, values[kPairs - 1]);
  uint32_t both =
      __vmaxu2(__byte_perm(positive, negative, 0x5410), __byte_perm(positive, negative, 0x7632));
#pragma unroll
  for (int mask = 1; mask < kRowLanes; mask <<= 1)
    both = __vmaxu2(both, __shfl_xor_sync(~0u, both, mask));
  RowExtremes extremes = {(both & 0xFFFFu) ^ 0x8000u, both >> 16};
  if (__any_sync(~0u, extremes.largest >= 0x8000u || extremes.smallest < 0x8000u)) {
    uint32_t least = values[0];
#pragma unroll
    for (int i = 1; i < kPairs; ++i) least = __vminu2(least, values[i]);
    least = min(least & 0xFFFFu, least >> 16);
#pragma unroll
    for (int mask = 1; mask < kRowLanes; mask <<= 1)
      least = min(least, __shfl_xor_sync(~0u, least, mask));
    if (extremes.largest >= 0x8000u) extremes.largest = least;
    if (extremes.smallest < 0x8000u) extremes.smallest = least;
  }
  return extremes;
}

// 1 / x, correctly rounded, for the values of fp16 but 0, infinity and NaN.
__device__ __forceinline__ float ReciprocalOfHalf(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}

// The grid of a row for codes 0 .. 3.
__device__ __forceinline__ void MakeGrid(const RowExtremes& extremes, uint32_t threshold,
                                         bool clips, DeviceGrid& grid) {
  const float largest = __uint_as_float(extremes.largest << 16),
              smallest = __uint_as_float(extremes.smallest << 16);
  const float limit = __uint_as_float(threshold << 16);
  const float high = fminf(largest, limit), low = fmaxf(smallest, -limit);
  const __half offset = __float2half_rn(__fadd_rn(low, 0.0f));  // -0 is stored as +0
  // (high - low) / 3, correctly rounded: 1/3 rounded, and one step of correction.
  const float range = __fsub_rn(high, low);
  const float third = __fmul_rn(range, 0x1.555556p-2f);
  const float quotient = __fmaf_rn(__fmaf_rn(-3.0f, third, range), 0x1.555556p-2f, third);
  const __half scale = __float2half_rn(quotient);
  const float step = __half2float(scale);
  const bool is_constant = step == 0.0f;
  const float reciprocal = is_constant ? 0.0f : ReciprocalOfHalf(step);
  grid.pair = __halves2half2(scale, offset);
  grid.shift = __half2float(offset);
  grid.quarter_reciprocal = 0.25f * reciprocal;
  grid.threshold = threshold;
  grid.is_encodable = fabsf(largest) < __builtin_huge_valf() &&
                      fabsf(smallest) < __builtin_huge_valf() && !__hisinf(scale) &&
                      !__hisinf(offset);
  const float top = __fadd_rn(__fmul_rn(__fsub_rn(high, grid.shift), reciprocal), 0.5f);
  const float bottom = __fadd_rn(__fmul_rn(__fsub_rn(low, grid.shift), reciprocal), 0.5f);
  grid.needs_clip = clips && !is_constant && !(top >= 3.0f && bottom < 1.0f);
}

// --- The order statistic of the clip (method.md 3.2) ---
// Patterns of magnitudes order like the numbers, and thresholds are seldom below a quarter of the
// largest value. So a lane turns its values into bytes, pattern - start in the 256 patterns up to
// the largest (0 for what lies below), and these into bit planes: plane b has bit b of 32 values.
// Each step of the search is then one population count per row.

inline constexpr int kPlaneValues = 32;
template <int kPairs>
inline constexpr int kPlaneGroups = (2 * kPairs + kPlaneValues - 1) / kPlaneValues;

// words[i] byte j -> bit 8 j + i of planes[b]; in place.
__device__ __forceinline__ void TransposeBits(uint32_t (&words)[8]) {
#pragma unroll
  for (int distance = 4; distance > 0; distance >>= 1) {
    const uint32_t mask = distance == 4 ? 0x0F0F0F0Fu : (distance == 2 ? 0x33333333u : 0x55555555u);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t low = words[i], high = words[i + distance];
      words[i] = (low & mask) | ((high << distance) & ~mask);
      words[i + distance] = ((low >> distance) & mask) | (high & ~mask);
    }
  }
}

template <int kPairs>
__device__ __forceinline__ void MakePlanes(const uint32_t (&values)[kPairs], uint32_t start,
                                           uint32_t (&planes)[kPlaneGroups<kPairs>][8]) {
  const uint32_t minus_start = InBothHalves((0u - start) & 0xFFFFu);
#pragma unroll
  for (int group = 0; group < kPlaneGroups<kPairs>; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int pair = 16 * group + 2 * i;
      if (pair < kPairs) {
        const uint32_t first = __viaddmax_s16x2(values[pair] & 0x7FFF7FFFu, minus_start, 0);
        const uint32_t second = __viaddmax_s16x2(values[pair + 1] & 0x7FFF7FFFu, minus_start, 0);
        planes[group][i] = second * 256 + first;
      } else {
        planes[group][i] = 0;
      }
    }
    TransposeBits(planes[group]);
  }
}

// Per row the byte with exactly `index` bytes ordered before it.
template <int kPairs>
__device__ __forceinline__ void SelectBytes(const uint32_t (&planes)[2][kPlaneGroups<kPairs>][8],
                                            int index, uint32_t (&found)[2]) {
  constexpr int kGroups = kPlaneGroups<kPairs>;
  uint32_t left[2][kGroups];  // values that agree with the bits found so far
  int rank[2] = {index, index};
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    found[row] = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      left[row][group] = 16 * group + 16 <= kPairs ? ~0u : 0x0F0F0F0Fu;
  }
#pragma unroll
  for (int bit = 7; bit >= 0; --bit) {
    uint32_t zeros[2][kGroups];
    int counts = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int row = 0; row < 2; ++row)
        zeros[row][group] = left[row][group] & ~planes[row][group][bit];
      counts += __popc(zeros[0][group]) + __popc(zeros[1][group]) * 65536;
    }
#pragma unroll
    for (int mask = 1; mask < kRowLanes; mask <<= 1) counts += __shfl_xor_sync(~0u, counts, mask);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int num_zeros = row == 0 ? counts & 0xFFFF : counts >> 16;
      const bool is_zero = rank[row] < num_zeros;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        left[row][group] = is_zero ? zeros[row][group] : left[row][group] ^ zeros[row][group];
      }
      if (!is_zero) {
        rank[row] -= num_zeros;
        found[row] |= 1u << bit;
      }
    }
  }
}

// The same for patterns of magnitudes that lie anywhere, by binary search. Slow, and small: rows
// with many outliers.
template <int kPairs, class Load>
__device__ __forceinline__ void SelectFromAll(const Load& load, int index, uint32_t (&found)[2]) {
#pragma unroll 1
  for (int row = 0; row < 2; ++row) {
    found[0] = found[1];
    uint32_t values[kPairs];
    load(row, values);
    found[1] = 0;
#pragma unroll 1
    for (uint32_t bit = 0x4000; bit != 0; bit >>= 1) {
      const __nv_bfloat162 limit = AsBf16Pair(InBothHalves(found[1] | bit));
      __nv_bfloat162 below = AsBf16Pair(0);  // counts up to 64 are exact
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
        below = __hadd2(below, __hlt2(__habs2(AsBf16Pair(values[i])), limit));
      float count = __low2float(below) + __high2float(below);
#pragma unroll
      for (int mask = 1; mask < kRowLanes; mask <<= 1) count += __shfl_xor_sync(~0u, count, mask);
      if (count <= static_cast<float>(index)) found[1] |= bit;
    }
  }
}

// Grids of two rows for codes 0 .. 3. clip_index < 0: no clip; the same for the whole warp.
// load(row, values) reads the values of a row; they do not stay in registers. The rows go through
// one loop: straight code would miss the instruction cache.
template <int kPairs, class Load>
__device__ __forceinline__ void MinMaxGrids(const Load& load, int clip_index,
                                            DeviceGrid (&grids)[2]) {
  RowExtremes extremes[2] = {};
  uint32_t thresholds[2] = {0x7F80u, 0x7F80u}, starts[2] = {},
           planes[2][kPlaneGroups<kPairs>][8] = {};
#pragma unroll 1
  for (int row = 0; row < 2; ++row) {
    extremes[0] = extremes[1];
    starts[0] = starts[1];
#pragma unroll
    for (int group = 0; group < kPlaneGroups<kPairs>; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) planes[0][group][i] = planes[1][group][i];
    }
    uint32_t values[kPairs];
    load(row, values);
    extremes[1] = FindExtremes(values);
    const uint32_t largest = max(extremes[1].largest & 0x7FFFu, extremes[1].smallest & 0x7FFFu);
    starts[1] = max(largest, 255u) - 255u;
    if (clip_index >= 0) MakePlanes(values, starts[1], planes[1]);
  }
  if (clip_index >= 0) {
    SelectBytes<kPairs>(planes, clip_index, thresholds);
    bool may_lie_below = false;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      may_lie_below |= thresholds[row] == 0 && starts[row] != 0;
      thresholds[row] += starts[row];
    }
    if (__any_sync(~0u, may_lie_below)) SelectFromAll<kPairs>(load, clip_index, thresholds);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row)
    MakeGrid(extremes[row], thresholds[row], clip_index >= 0, grids[row]);
}

__device__ __forceinline__ uint32_t ClipPair(uint32_t values, uint32_t thresholds) {
  const __nv_bfloat162 clipped = __hmin2(
      __hmax2(AsBf16Pair(values), AsBf16Pair(thresholds | 0x80008000u)), AsBf16Pair(thresholds));
  return AsBits(clipped);
}

// floor(clamp(level, 0, 4)) as kLevelBits + 0 .. 4, level = (y - shift) / scale + 1/2 with the
// roundings of method.md 3.1. Levels are carried as quarters, which changes no rounding, so that
// saturation clamps them. 4 stands for 3 (see SettleCodes).
inline constexpr uint32_t kLevelBits = 0x4A000000u;  // 2^21, whose last place is 1/4
__device__ __forceinline__ uint32_t LevelOf(float y, float shift, float quarter_reciprocal) {
  const float quarter =
      __saturatef(__fadd_rn(__fmul_rn(__fsub_rn(y, shift), quarter_reciprocal), 0.125f));
  return __float_as_uint(__fadd_rd(quarter, 2097152.0f));
}
__device__ __forceinline__ float LowValue(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighValue(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

// Eight codes 0 .. 4 in the nibbles of a word: 4 becomes 3.
__device__ __forceinline__ uint32_t SettleCodes(uint32_t nibbles) {
  return nibbles - ((nibbles >> 2) & 0x11111111u);
}

}  // namespace oscar::affine::device
