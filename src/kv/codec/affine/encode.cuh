// The min-max encoder of the affine row on the device: method.md 3.1 and 3.2, bit for bit what reference.cc and the CPU kernels
// make of the same bf16 row. Eight lanes share a row; lane p of them holds its 16-byte pieces p, p + 8, ...: values as packed
// pairs of bf16, in order of the dimensions.
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

__device__ __forceinline__ __nv_bfloat162 AsBf16Pair(uint32_t bits) { return *reinterpret_cast<__nv_bfloat162*>(&bits); }

// The magnitude with exactly `index` values of the row ordered before it, as a bf16 pattern: binary search on the 15 bits of a
// magnitude, which order like the number. Precondition: finite values.
template <int kPairs>
__device__ __forceinline__ uint32_t SelectMagnitude(const uint32_t (&values)[kPairs], int index) {
  uint32_t threshold = 0;
#pragma unroll 1
  for (uint32_t bit = 0x4000; bit != 0; bit >>= 1) {
    const uint32_t candidate = threshold | bit;
    const __nv_bfloat162 limit = AsBf16Pair(candidate * 0x00010001u);
    __nv_bfloat162 below = AsBf16Pair(0);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) below = __hadd2(below, __hlt2(AsBf16Pair(values[i] & 0x7FFF7FFFu), limit));  // counts <= 128
    const float count = ReduceRow(__low2float(below) + __high2float(below), [](float a, float b) { return a + b; });
    if (count <= static_cast<float>(index)) threshold = candidate;
  }
  return threshold;
}

// Clips the values in place (clip_index < 0: not) and makes the grid for codes 0 .. largest_code. False, for all lanes of the
// row, when a value is not finite or scale or offset overflow fp16.
template <int kPairs>
__device__ __forceinline__ bool MinMaxGridOfRow(uint32_t (&values)[kPairs], int clip_index, int largest_code, DeviceGrid& grid) {
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    not_finite |= ((values[i] & 0x7F807F80u) + 0x00800080u) & 0x80008000u;  // exponent of ones carries into the sign's place
  }
  const bool is_finite = ReduceRow(not_finite, [](uint32_t a, uint32_t b) { return a | b; }) == 0;
  if (clip_index >= 0) {  // the same for the whole warp
    const uint32_t threshold = SelectMagnitude(values, clip_index);
    const __nv_bfloat162 high = AsBf16Pair(threshold * 0x00010001u), low = AsBf16Pair((threshold | 0x8000u) * 0x00010001u);
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
  const float low = ReduceRow(fminf(__low2float(lowest), __high2float(lowest)), [](float a, float b) { return fminf(a, b); });
  const float high = ReduceRow(fmaxf(__low2float(highest), __high2float(highest)), [](float a, float b) { return fmaxf(a, b); });
  grid.offset = __float2half_rn(__fadd_rn(low, 0.0f));  // -0 is stored as +0
  grid.scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), static_cast<float>(largest_code)));
  const float scale = __half2float(grid.scale);
  grid.is_constant = scale == 0.0f;
  grid.shift = __half2float(grid.offset);
  grid.reciprocal = grid.is_constant ? 0.0f : __fdiv_rn(1.0f, scale);
  return is_finite && !__hisinf(grid.scale) && !__hisinf(grid.offset);
}

// Codes of two values, in bits 0-7 and 8-15.
__device__ __forceinline__ uint32_t CodePair(uint32_t values, const DeviceGrid& grid, int largest_code) {
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float y = __uint_as_float(i == 0 ? values << 16 : values & 0xFFFF0000u);
    const float steps = __fmul_rn(__fsub_rn(y, grid.shift), grid.reciprocal);
    const int code = min(max(__float2int_rd(__fadd_rn(steps, 0.5f)), 0), largest_code);
    codes |= static_cast<uint32_t>(grid.is_constant ? 0 : code) << (8 * i);
  }
  return codes;
}

}  // namespace oscar::affine::device
