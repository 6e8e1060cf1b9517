// The min-max encoder of the affine row on the device: method.md 3.1 and 3.2, bit for bit what reference.cc and the CPU
// kernels make of the same bf16 row. Eight lanes share a row; lane p of them holds its 16-byte pieces p, p + 8, ...:
// values as packed pairs of bf16, in order of the dimensions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace oscar::affine::device {

inline constexpr int kRowLanes = 8;

// What a row is stored with, and what its codes are made with.
struct DeviceGrid {
  __half scale, offset;
  float shift, reciprocal;
  bool is_constant;
};

// Over the 8 lanes of a row.
template <class T, class Op>
__device__ __forceinline__ T ReduceRow(T x, Op op) {
#pragma unroll
  for (int mask = 1; mask < kRowLanes; mask <<= 1) x = op(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

__device__ __forceinline__ __nv_bfloat162 AsBf16Pair(uint32_t bits) {
  return *reinterpret_cast<__nv_bfloat162*>(&bits);
}

// How many values of the row have a magnitude below the candidate (a bf16 pattern).
template <int kPairs>
__device__ __forceinline__ float CountBelow(const uint32_t (&magnitudes)[kPairs], uint32_t candidate) {
  const __nv_bfloat162 limit = AsBf16Pair(candidate * 0x00010001u);
  __nv_bfloat162 below = __hlt2(AsBf16Pair(magnitudes[0]), limit);
#pragma unroll
  for (int i = 1; i < kPairs; ++i)
    below = __hadd2(below, __hlt2(AsBf16Pair(magnitudes[i]), limit));  // counts <= 128: exact
  return ReduceRow(__low2float(below) + __high2float(below), [](float x, float y) { return x + y; });
}

// The magnitude with exactly `index` values of the row ordered before it, as a bf16 pattern: binary search on the 15
// bits of a magnitude, which order like the number. Thresholds are seldom below a quarter of the largest value, so the
// search begins in the 256 patterns of its last two powers of two, and on all patterns when a row of the warp needs it.
// Precondition: finite.
template <int kPairs>
__device__ __forceinline__ uint32_t SelectMagnitude(const uint32_t (&values)[kPairs], int index) {
  uint32_t magnitudes[kPairs];
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    magnitudes[i] = values[i] & 0x7FFF7FFFu;
    largest = __vmaxu2(largest, magnitudes[i]);
  }
  largest = ReduceRow(max(largest & 0xFFFF, largest >> 16), [](uint32_t x, uint32_t y) { return max(x, y); });
  const uint32_t exponent = largest & 0x7F80;
  const uint32_t start =
      exponent >= 0x80 ? exponent - 0x80 : 0;  // 256 patterns up to the end of the largest one's exponent
  const bool is_near = CountBelow(magnitudes, start) <= static_cast<float>(index);
  const bool all_near = __all_sync(~0u, is_near);
  uint32_t threshold = all_near ? start : 0;
#pragma unroll 1
  for (uint32_t bit = all_near ? 0x80 : 0x4000; bit != 0; bit >>= 1) {
    // start is a multiple of 0x80, so steps are added, not set.
    const uint32_t candidate = threshold + bit;
    if (CountBelow(magnitudes, candidate) <= static_cast<float>(index)) threshold = candidate;
  }
  return threshold;
}

// Clips the values in place (clip_index < 0: not) and makes the grid for codes 0 .. largest_code. False, for all lanes
// of the row, when a value is not finite or scale or offset overflow fp16.
template <int kPairs>
__device__ __forceinline__ bool MinMaxGridOfRow(uint32_t (&values)[kPairs], int clip_index, int largest_code,
                                                DeviceGrid& grid) {
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    not_finite |=
        ((values[i] & 0x7F807F80u) + 0x00800080u) & 0x80008000u;  // exponent of ones carries into the sign's place
  }
  const bool is_finite = ReduceRow(not_finite, [](uint32_t a, uint32_t b) { return a | b; }) == 0;
  if (clip_index >= 0) {  // the same for the whole warp
    const uint32_t threshold = SelectMagnitude(values, clip_index);
    const __nv_bfloat162 high = AsBf16Pair(threshold * 0x00010001u),
                         low = AsBf16Pair((threshold | 0x8000u) * 0x00010001u);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const __nv_bfloat162 clipped = __hmin2(__hmax2(AsBf16Pair(values[i]), low), high);
      values[i] = *reinterpret_cast<const uint32_t*>(&clipped);
    }
  }
  __nv_bfloat162 lowest = AsBf16Pair(values[0]), highest = lowest;
#pragma unroll
  for (int i = 1; i < kPairs; ++i) {
    lowest = __hmin2(lowest, AsBf16Pair(values[i]));
    highest = __hmax2(highest, AsBf16Pair(values[i]));
  }
  const float low =
      ReduceRow(fminf(__low2float(lowest), __high2float(lowest)), [](float a, float b) { return fminf(a, b); });
  const float high =
      ReduceRow(fmaxf(__low2float(highest), __high2float(highest)), [](float a, float b) { return fmaxf(a, b); });
  grid.offset = __float2half_rn(__fadd_rn(low, 0.0f));  // -0 is stored as +0
  grid.scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), static_cast<float>(largest_code)));
  const float scale = __half2float(grid.scale);
  grid.is_constant = scale == 0.0f;
  grid.shift = __half2float(grid.offset);
  grid.reciprocal = grid.is_constant ? 0.0f : __fdiv_rn(1.0f, scale);
  return is_finite && !__hisinf(grid.scale) && !__hisinf(grid.offset);
}

// Codes of four values in the bytes of a word. floor(clamp(v)) is clamp(floor(v)), and adding 2^23 downwards leaves the
// floor in the low bits. A constant row has reciprocal 0: all codes 0.
__device__ __forceinline__ uint32_t FourCodes(uint32_t values01, uint32_t values23, const DeviceGrid& grid,
                                              int largest_code) {
  uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t values = i < 2 ? values01 : values23;
    const float y = __uint_as_float((i & 1) == 0 ? values << 16 : values & 0xFFFF0000u);
    const float level = __fadd_rn(__fmul_rn(__fsub_rn(y, grid.shift), grid.reciprocal), 0.5f);
    const float clamped = fminf(fmaxf(level, 0.0f), static_cast<float>(largest_code));
    codes[i] = __float_as_uint(__fadd_rd(clamped, 8388608.0f));
  }
  return __byte_perm(__byte_perm(codes[0], codes[1], 0x0040), __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
}

}  // namespace oscar::affine::device
