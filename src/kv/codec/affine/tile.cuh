// The affine page as matrix operands (gpu.md 5.4, 5.5, 5.7): queries to int8 pairs, scores of
// 16 tokens straight from code words, and code words as fp16 subnormals for the value product. One
// warp; lane = 4 G + t. No softmax here. Written for codes of 2 bits; others are read as such: two
// pieces out of one (1 bit), the planes one after the other (4 bits).
//
// HeadTile is the number of query heads in one visit. 4: the 8 columns of a matrix instruction are
// (hi, lo) pairs of 4 heads, and a lane's results belong to head t. 8: one instruction for hi, one
// for lo; a lane's results belong to heads 2t, 2t + 1.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::device {

namespace ptx = oscar::kernels::cuda::ptx;

// Value products accumulate code * 2^-24 * weight.
inline constexpr float kValueProductScale = 16777216.0f;

// Weight factors 4^-i that undo the position i of a 2-bit class inside an fp16 mantissa; index k =
// 2 j + a.
template <int k>
inline constexpr float kClassFactor = 1.0f / (1 << (2 * (k < 5 ? k : k - 5)));

// Where QuantizeQuery writes: the words of Int2Query (rows of word_stride), kappa / S, and per head
// kappa * Sum(q').
struct QueryOperands {
  uint32_t* high;
  uint32_t* low;
  int word_stride;
  float* scale;
  float* sum;
};

// Quantises the queries of the kHeads heads that share a lane (bf16 rows of row_stride, shared
// memory) by one warp, with one S = 32600 / max|q|: q S rounded to high * 256 + low, for dimensions
// in odd fields q S / 4, because their codes arrive multiplied by 4. The sum is of the *rounded*
// query: then z is exact for a query that differs a little from the given one, and the difference
// meets centred keys.
template <int D, int kHeads>
__device__ __forceinline__ void QuantizeQuery(const uint16_t* query, int row_stride, float kappa,
                                              int lane, const QueryOperands& out) {
  constexpr int kWords = (D / 4 + 31) / 32;
  float x[kHeads][kWords][4];
  float largest = 1e-20f;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int n = 0; n < kWords; ++n) {
      const int word = 32 * n + lane;
      const uint2 bits = word < D / 4
                             ? *reinterpret_cast<const uint2*>(query + h * row_stride + 4 * word)
                             : uint2{};
      x[h][n][0] = __uint_as_float(bits.x << 16);
      x[h][n][1] = __uint_as_float(bits.x & 0xFFFF0000u);
      x[h][n][2] = __uint_as_float(bits.y << 16);
      x[h][n][3] = __uint_as_float(bits.y & 0xFFFF0000u);
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = fmaxf(largest, fabsf(x[h][n][e]));
    }
  }
#pragma unroll
  for (int mask = 1; mask <= 16; mask <<= 1)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
  const float scale = 32600.0f / largest;
  const float unit = kappa * (largest * (1.0f / 32600.0f));
  if (lane == 0) *out.scale = unit;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    int sum = 0;
#pragma unroll
    for (int n = 0; n < kWords; ++n) {
      const int word = 32 * n + lane;
      const bool is_odd = (word >> 2) & 1;  // field of dimensions 4 word ..
      uint32_t high_word = 0, low_word = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int value = __float2int_rn(x[h][n][e] * (is_odd ? scale * 0.25f : scale));
        sum += is_odd ? 4 * value : value;
        const int hi = (value + 128) >> 8;
        high_word |= static_cast<uint32_t>(hi & 0xFF) << (8 * e);
        low_word |= static_cast<uint32_t>((value - 256 * hi) & 0xFF) << (8 * e);
      }
      if (word < D / 4) {
        out.high[h * out.word_stride + word] = high_word;
        out.low[h * out.word_stride + word] = low_word;
      }
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) out.sum[h] = unit * static_cast<float>(sum);
  }
}

template <int D, int HeadTile>
struct Int2Query {
  static constexpr int kHeadsPerLane = HeadTile / 4;
  static constexpr int kOperands = D / 16;

  uint32_t b[kHeadsPerLane][kOperands];  // B operands, two registers per k-step
  float inverse_scale;                   // kappa / S of the lane's heads
  float offset_factor[kHeadsPerLane];    // kappa * Sum(q')

  // Lowest dimension of operand register r (for t = 0).
  static constexpr int FirstDim(int r) {
    const int wide = D / 128 * 8;
    return r < wide ? r / 8 * 128 + 64 * (r & 1) + 16 * (r % 8 / 2)
                    : D / 128 * 128 + 32 * (r & 1) + 16 * ((r - wide) / 2);
  }

  // From what QuantizeQuery wrote; rows of `stride` words.
  __device__ __forceinline__ void Load(const uint32_t* high, const uint32_t* low, int stride,
                                       const float* scale, const float* sum, int lane) {
    const int row = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < kOperands; ++r) {
      if constexpr (HeadTile == 4) {
        b[0][r] = ((row & 1) ? low : high)[(row >> 1) * stride + FirstDim(r) / 4 + t];
      } else {
        b[0][r] = high[row * stride + FirstDim(r) / 4 + t];
        b[1][r] = low[row * stride + FirstDim(r) / 4 + t];
      }
    }
    inverse_scale = scale[t];
#pragma unroll
    for (int h = 0; h < kHeadsPerLane; ++h) offset_factor[h] = sum[kHeadsPerLane * t + h];
  }
};

// One k-step of A operands from four words that were shifted as needed: the even or the odd fields,
// by the mask.
template <int kHeadsPerLane>
__device__ __forceinline__ void ScoreStep(int (&c)[kHeadsPerLane][4], uint32_t mask,
                                          const uint32_t (&words)[4], const uint32_t* b0,
                                          const uint32_t* b1) {
  const uint32_t a[4] = {words[0] & mask, words[1] & mask, words[2] & mask, words[3] & mask};
#pragma unroll
  for (int h = 0; h < kHeadsPerLane; ++h) ptx::MmaU8S8(c[h], a, b0[h], b1[h]);
}

// The lane's 16 bytes of 2-bit codes of piece `piece`; of 1-bit codes with other bits above them.
template <int kBits>
__device__ __forceinline__ uint4 LoadPiece(uint32_t codes, int piece, int lane) {
  if constexpr (kBits != 1) return ptx::LoadShared16(codes + piece * 512 + lane * 16);
  const uint4 w = ptx::LoadShared16(codes + piece / 2 * 512 + lane * 16);
  return piece % 2 == 0 ? w : make_uint4(w.x >> 1, w.y >> 1, w.z >> 1, w.w >> 1);
}

// Adds the scores of token tile j from one plane of key codes to c. tail: of tiles j and j + 1 where
// j is even, of the last 64 dimensions.
template <int D, int HeadTile, int kBits>
__device__ __forceinline__ void AddTileScores(uint32_t codes, int j, int lane,
                                              const Int2Query<D, HeadTile>& query, uint4& tail,
                                              int (&c)[HeadTile / 4][4]) {
  constexpr int kHeads = HeadTile / 4;
  constexpr uint32_t kEven = kBits == 1 ? 0x01010101u : 0x03030303u, kOdd = 4 * kEven;
#pragma unroll
  for (int s = 0; s < D / 128; ++s) {
    const uint4 w = LoadPiece<kBits>(codes, 4 * s + j, lane);
    const uint4 v = {w.x >> 4, w.y >> 4, w.z >> 4, w.w >> 4};
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const uint4& u = f < 2 ? w : v;
      uint32_t b0[kHeads], b1[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        b0[h] = query.b[h][s * 8 + 2 * f];
        b1[h] = query.b[h][s * 8 + 2 * f + 1];
      }
      ScoreStep<kHeads>(c, (f & 1) ? kOdd : kEven, {u.x, u.z, u.y, u.w}, b0, b1);
    }
  }
  if constexpr (D % 128 != 0) {
    if (j % 2 == 0) tail = LoadPiece<kBits>(codes, D / 128 * 4 + j / 2, lane);
    const uint32_t low = j % 2 == 0 ? tail.x : tail.z, high = j % 2 == 0 ? tail.y : tail.w;
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      uint32_t b0[kHeads], b1[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        b0[h] = query.b[h][D / 128 * 8 + 2 * f];
        b1[h] = query.b[h][D / 128 * 8 + 2 * f + 1];
      }
      ScoreStep<kHeads>(c, f ? kOdd : kEven, {low, high, low >> 4, high >> 4}, b0, b1);
    }
  }
}

// Integer scores S q.c of the 64 tokens of a page: x[2 j + a][h] for token 16 j + G + 8 a and the
// lane's head h.
template <int D, int HeadTile, int kBits>
__device__ __forceinline__ void PageScores(uint32_t block, int lane,
                                           const Int2Query<D, HeadTile>& query,
                                           float (&x)[8][HeadTile / 4]) {
  constexpr int kHeads = HeadTile / 4, kPlanes = NumPlanes(kBits);
  uint4 tails[kPlanes] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    int c[kHeads][4] = {};
    AddTileScores<D, HeadTile, kBits>(block, j, lane, query, tails[0], c);
    if constexpr (kPlanes == 2) {
      int high[kHeads][4] = {};
      AddTileScores<D, HeadTile, kBits>(block + SideBytes(2, D), j, lane, query, tails[1], high);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[h][i] += 4 * high[h][i];
      }
    }
    if constexpr (HeadTile == 4) {
      x[2 * j][0] = __int2float_rn(c[0][0] * 256 + c[0][1]);
      x[2 * j + 1][0] = __int2float_rn(c[0][2] * 256 + c[0][3]);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        x[2 * j][h] = __int2float_rn(c[0][h] * 256 + c[1][h]);
        x[2 * j + 1][h] = __int2float_rn(c[0][2 + h] * 256 + c[1][2 + h]);
      }
    }
  }
}

// (scale, offset) of the lane's 8 tokens, index 2 j + a.
__device__ __forceinline__ void LoadPairs(uint32_t pairs, int row, __half2 (&pair)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 w = ptx::LoadShared16(pairs + row * 32 + i * 16);
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) pair[4 * i + n] = *reinterpret_cast<const __half2*>(&words[n]);
  }
}

// Weights p s_v times the class factor as fp16, for token tile j: p[a][h] of tokens 16 j + G + 8 a,
// the pairs of both tokens. One head a lane: packed[0] = (a = 0, a = 1). Two: packed[a] = (head 2t,
// head 2t + 1).
template <int kHeads>
__device__ __forceinline__ void PackWeights(int j, const float (&p)[2][kHeads], __half2 pair0,
                                            __half2 pair1, uint32_t* packed) {
  constexpr float kFactors[8] = {kClassFactor<0>, kClassFactor<1>, kClassFactor<2>,
                                 kClassFactor<3>, kClassFactor<4>, kClassFactor<5>,
                                 kClassFactor<6>, kClassFactor<7>};
  const float f0 = kFactors[2 * j], f1 = kFactors[2 * j + 1];
  if constexpr (kHeads == 1) {
    packed[0] =
        ptx::PackF16(p[0][0] * (__low2float(pair0) * f0), p[1][0] * (__low2float(pair1) * f1));
  } else {
    // fp16 products: the two roundings cost 3e-4 of a weight and save a fifth of this function.
    __half2 w0 = __hmul2(__floats2half2_rn(p[0][0], p[0][1]), __low2half2(pair0));
    __half2 w1 = __hmul2(__floats2half2_rn(p[1][0], p[1][1]), __low2half2(pair1));
    if (f0 != 1.0f) w0 = __hmul2(w0, __float2half2_rn(f0));
    if (f1 != 1.0f) w1 = __hmul2(w1, __float2half2_rn(f1));
    packed[0] = *reinterpret_cast<uint32_t*>(&w0);
    packed[1] = *reinterpret_cast<uint32_t*>(&w1);
  }
}

// Class k of a value word, its bits 2 k and up, as two fp16 subnormals code * 4^i * 2^-24.
template <int k, int kBits>
__device__ __forceinline__ uint32_t ValueClass(uint32_t word, uint32_t shifted_by_10) {
  constexpr uint32_t kMask = kBits == 1 ? 0x00010001u : 0x00030003u;
  return k < 5 ? word & (kMask << (2 * k)) : shifted_by_10 & (kMask << (2 * (k - 5)));
}

// Classes k and k + 1 of a lane's four words into both accumulators of a group of 32 dimensions.
template <int k, int kBits>
__device__ __forceinline__ void ValueStep(const uint4& w, const uint4& s,
                                          const uint32_t (&weights)[8], float (&first)[4],
                                          float (&second)[4]) {
  ptx::MmaF16(first,
              {ValueClass<k, kBits>(w.x, s.x), ValueClass<k, kBits>(w.y, s.y),
               ValueClass<k + 1, kBits>(w.x, s.x), ValueClass<k + 1, kBits>(w.y, s.y)},
              weights[k], weights[k + 1]);
  ptx::MmaF16(second,
              {ValueClass<k, kBits>(w.z, s.z), ValueClass<k, kBits>(w.w, s.w),
               ValueClass<k + 1, kBits>(w.z, s.z), ValueClass<k + 1, kBits>(w.w, s.w)},
              weights[k], weights[k + 1]);
}

// acc[i] += V^T w for dimension tile i (16 dimensions) of one plane: accumulators of dimensions 16 i
// + G, 16 i + 8 + G, columns 2t, 2t + 1. weights[k]: B operand of the 8 tokens of class k.
template <int D, int kBits>
__device__ __forceinline__ void AccumulateValues(uint32_t value_codes, int lane,
                                                 const uint32_t (&weights)[8],
                                                 float (&acc)[D / 16][4]) {
#pragma unroll
  for (int u = 0; u < D / 32; ++u) {
    const uint4 w = LoadPiece<kBits>(value_codes, u, lane);
    const uint4 s = {w.x >> 10, w.y >> 10, w.z >> 10, w.w >> 10};
    ValueStep<0, kBits>(w, s, weights, acc[2 * u], acc[2 * u + 1]);
    ValueStep<2, kBits>(w, s, weights, acc[2 * u], acc[2 * u + 1]);
    ValueStep<4, kBits>(w, s, weights, acc[2 * u], acc[2 * u + 1]);
    ValueStep<6, kBits>(w, s, weights, acc[2 * u], acc[2 * u + 1]);
  }
}

}  // namespace oscar::affine::device
