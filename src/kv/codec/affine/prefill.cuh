// Prefill attention over BF16 and encoded pages (gpu.md 7.3), with the pages decoded to fp16 in
// shared memory and mma.sync on them. The first version: one CTA has 128 rows, (head of the group,
// token of an aligned tile of 64), and goes over the pages that the tile sees, its own page first.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/kernels/cuda/prefill_params.h"
#include "src/kv/kernels/cuda/ptx/async_copy.cuh"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::prefill {

namespace ptx = kernels::cuda::ptx;
using kernels::cuda::PrefillParams;

inline constexpr int kTokens = device::kTokens;
// A warp has two operand tiles of 16 rows, which share what it reads of keys and values.
inline constexpr int kWarps = 4, kThreads = 32 * kWarps, kRowTiles = 2, kWarpRows = 16 * kRowTiles;
inline constexpr int kRows = kWarpRows * kWarps;
// Weights are 2^(z - m + 10): fp16 keeps them down to 2^-34 of the largest.
inline constexpr float kHeadroom = 10.0f;
inline constexpr float kNone = -1e30f;

// Dimensions of the result that a CTA makes; above d = 128 two CTAs share a row, for want of
// registers.
template <int D>
inline constexpr int kValueParts = D > 128 ? 2 : 1;
template <int D>
inline constexpr int kValueDims = D / kValueParts<D>;

// 16-byte piece p of row r stands at p ^ (r & 7) everywhere, so that matrix loads read different
// banks.
template <int D, int kBits>
struct Shared {
  alignas(128) __half queries[kRows][D];  // scaled by a power of two per row
  alignas(128) __half keys[kTokens][D];
  alignas(128) __half values[D][kTokens];  // transposed
  alignas(128) uint8_t staged[2][device::BlockBytes(kBits, D)];
  float scale[kRows];  // kappa over the row's power of two
  float beta[kRows];
  float2 row_mass[kRows];  // reference and sum of weights after the BF16 pages
};

__device__ __forceinline__ int Swizzled(int row, int column, int width) {
  return row * width + ((((column >> 3) ^ (row & 7)) << 3) | (column & 7));
}

// What a CTA works on.
struct Place {
  int tile, head, first_row, split;  // tile: position / 64 of its queries
  int first_dim;                     // of the result
};

// Row r: token 64 tile + r % 64 of head r / 64 of the group; false where there is none.
__device__ __forceinline__ bool FindRow(const PrefillParams& params, const Place& place, int r,
                                        int64_t& index) {
  const int row = place.first_row + r, head = row / kTokens;
  const int token = place.tile * kTokens + row % kTokens - params.first_position;
  if (head >= params.group || token < 0 || token >= params.num_tokens) return false;
  index = (static_cast<int64_t>(token) * params.kv_heads + place.head) * params.group + head;
  return true;
}

// Queries to fp16, exactly but for values below 2^-24 of the largest: a row is divided by the power
// of two of its largest magnitude. One warp per row.
template <int D, int kBits>
__device__ __forceinline__ void LoadQueries(const PrefillParams& params, const Place& place,
                                            int warp, int lane, Shared<D, kBits>& shared) {
  const uint16_t* queries =
      params.row_queries != nullptr && place.split == 0 ? params.row_queries : params.queries;
#pragma unroll 1
  for (int r = warp; r < kRows; r += kWarps) {
    int64_t index = 0;
    const bool is_row = FindRow(params, place, r, index);
    float x[D / 32], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      x[i] = is_row ? __uint_as_float(static_cast<uint32_t>(queries[index * D + 32 * i + lane])
                                      << 16)
                    : 0.0f;
      largest = fmaxf(largest, fabsf(x[i]));
    }
#pragma unroll
    for (int mask = 1; mask <= 16; mask <<= 1)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
    const float power = __uint_as_float(max(__float_as_uint(largest) & 0x7F800000u, 0x08000000u));
    const float inverse = 1.0f / power;
    __half* row = &shared.queries[0][0];
#pragma unroll
    for (int i = 0; i < D / 32; ++i)
      row[Swizzled(r, 32 * i + lane, D)] = __float2half_rn(x[i] * inverse);
    if (lane == 0) {
      shared.scale[r] = params.kappa * power;
      shared.beta[r] = is_row && params.beta != nullptr ? params.beta[index] : 0.0f;
    }
  }
}

// What the rotating key mean adds to the scores of the CTA's rows in one page; one thread per row.
template <int D, int kBits>
__device__ __noinline__ void LoadPageBeta(const PrefillParams& params, const Place& place, int page,
                                          Shared<D, kBits>& shared) {
  static_assert(kThreads == kRows);
  const int r = static_cast<int>(threadIdx.x);
  int64_t index = 0;
  if (!FindRow(params, place, r, index)) return;
  const int64_t pair = index / params.group, head = index % params.group;
  shared.beta[r] = __ldg(params.page_beta +
                         (pair * params.page_beta_stride + page) * params.page_beta_heads + head);
}

template <int D, int kBits>
__device__ __forceinline__ void RequestBlock(const PrefillParams& params, const Place& place,
                                             int page, int buffer, Shared<D, kBits>& shared) {
  const int64_t id = params.code_table[page];
  const uint8_t* block =
      params.code_pool + (id * params.kv_heads + place.head) * device::BlockBytes(kBits, D);
  for (int i = threadIdx.x; i < device::BlockBytes(kBits, D) / 16; i += kThreads) {
    ptx::CopyAsync16(ptx::SharedAddress(&shared.staged[buffer][16 * i]), block + 16 * i, true);
  }
}

// The words of a 16-byte piece of one plane of 2-bit codes (tile.cuh, LoadPiece).
template <int kBits>
__device__ __forceinline__ void LoadPlane(const uint8_t* codes, int piece, uint32_t (&words)[4]) {
  const int row = piece / 32, lane = piece % 32;  // of 512 bytes
  const uint4 w = *reinterpret_cast<const uint4*>(codes + (kBits == 1 ? row / 2 : row) * 512 + 16 * lane);
  const int shift = kBits == 1 ? row % 2 : 0;
  words[0] = w.x >> shift;
  words[1] = w.y >> shift;
  words[2] = w.z >> shift;
  words[3] = w.w >> shift;
}
// Both planes; the second one's words are zeros where there is none.
template <int D, int kBits>
__device__ __forceinline__ void LoadPiece(const uint8_t* codes, int piece, uint32_t (&low)[4],
                                          uint32_t (&high)[4]) {
  LoadPlane<kBits>(codes, piece, low);
  if constexpr (device::NumPlanes(kBits) == 2) {
    LoadPlane<kBits>(codes + device::SideBytes(2, D), piece, high);
  } else {
    for (uint32_t& word : high) word = 0;
  }
}

// Bytes 0 .. 3, each 0 .. 15, as two pairs of fp16.
__device__ __forceinline__ __half2 PairOfCodes(uint32_t bytes, uint32_t selector) {
  const uint32_t bits = __byte_perm(bytes, 0x64646464u, selector);  // 1024 + code
  return __hsub2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(1024.0f));
}

// One 16-byte piece of key codes to fp16 rows.
template <int D, int kBits>
__device__ __forceinline__ void DecodeKeyPiece(const uint8_t* block, int piece, __half* keys) {
  constexpr int kWide = D / 128 * 128;  // pieces of sub-blocks of 128 dimensions
  constexpr uint32_t kMask = kBits == 1 ? 0x01010101u : 0x03030303u;
  uint32_t words[4], high_words[4];
  LoadPiece<D, kBits>(block, piece, words, high_words);
  const int lane = piece % 32, row = lane >> 2, t = lane & 3;
  const bool is_wide = piece < kWide;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int token = is_wide ? 16 * (piece % 128 / 32) + row + 8 * (w >> 1)
                              : 32 * ((piece - kWide) / 32) + row + 8 * w;
    const int dim = is_wide ? piece / 128 * 128 + 64 * (w & 1) : kWide;
    const __half2 pair = *reinterpret_cast<const __half2*>(block + device::KeyPairOffset(kBits, D, token));
    const __half2 scale = __low2half2(pair), offset = __high2half2(pair);
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      uint32_t codes = (words[w] >> (2 * f)) & kMask;
      if (device::NumPlanes(kBits) == 2) codes |= ((high_words[w] >> (2 * f)) & kMask) << 2;
      const __half2 low = __hfma2(PairOfCodes(codes, 0x4140), scale, offset);
      const __half2 high = __hfma2(PairOfCodes(codes, 0x4342), scale, offset);
      *reinterpret_cast<uint2*>(keys + Swizzled(token, dim + 16 * f + 4 * t, D)) = make_uint2(
          *reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
    }
  }
}

// One 16-byte piece of value codes to fp16 columns: dimensions 32 u + 8 w + G, tokens 8 k + 2 t,
// + 1.
template <int D, int kBits>
__device__ __forceinline__ void DecodeValuePiece(const uint8_t* block, int piece, __half* values) {
  constexpr uint32_t kMask = kBits == 1 ? 0x00010001u : 0x00030003u;
  uint32_t words[4], high_words[4];
  LoadPiece<D, kBits>(block + device::SideBytes(kBits, D), piece, words, high_words);
  const int lane = piece % 32, row = lane >> 2, t = lane & 3;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const __half2 first =
        *reinterpret_cast<const __half2*>(block + device::ValuePairOffset(kBits, D, 8 * k + 2 * t));
    const __half2 second =
        *reinterpret_cast<const __half2*>(block + device::ValuePairOffset(kBits, D, 8 * k + 2 * t + 1));
    const __half2 scale = __lows2half2(first, second), offset = __highs2half2(first, second);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t codes = (words[w] >> (2 * k)) & kMask;
      if (device::NumPlanes(kBits) == 2) codes |= ((high_words[w] >> (2 * k)) & kMask) << 2;
      const __half2 value = __hfma2(PairOfCodes(codes, 0x4240), scale, offset);
      *reinterpret_cast<__half2*>(
          values + Swizzled(piece / 32 * 32 + 8 * w + row, 8 * k + 2 * t, kTokens)) = value;
    }
  }
}

template <int D, int kBits>
__device__ __forceinline__ void DecodeBlock(const uint8_t* block, int first_dim,
                                            Shared<D, kBits>& shared) {
#pragma unroll 1
  for (int piece = threadIdx.x; piece < D + kValueDims<D>;
       piece += kThreads) {  // of keys, then of values: whole warps each
    if (piece < D) {
      DecodeKeyPiece<D, kBits>(block, piece, &shared.keys[0][0]);
    } else {
      DecodeValuePiece<D, kBits>(block, first_dim + piece - D, &shared.values[0][0]);
    }
  }
}

// A BF16 page to fp16: exact for magnitudes of 2^-14 to 65,504. Rows from num_rows on hold anything
// and become zero.
template <int D, int kBits>
__device__ __forceinline__ void ConvertRows(const uint8_t* block, int num_rows, Shared<D, kBits>& shared) {
#pragma unroll 1
  for (int i = threadIdx.x; i < 2 * kTokens * D / 8; i += kThreads) {
    const int side = i / (kTokens * D / 8), token = i % kTokens, dim = i / kTokens % (D / 8) * 8;
    const uint4 x = *reinterpret_cast<const uint4*>(
        block + (side == 0 ? device::Bf16KeyOffset(D, token, dim)
                           : device::Bf16ValueOffset(D, token, dim)));
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    uint32_t halves[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      halves[n] = token < num_rows ? ptx::PackF16(__uint_as_float(words[n] << 16),
                                                  __uint_as_float(words[n] & 0xFFFF0000u))
                                   : 0u;
    }
    if (side == 0) {
      *reinterpret_cast<uint4*>(&shared.keys[0][0] + Swizzled(token, dim, D)) =
          make_uint4(halves[0], halves[1], halves[2], halves[3]);
    } else {
      __half* values = &shared.values[0][0];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint16_t bits = static_cast<uint16_t>(halves[n / 2] >> (16 * (n & 1)));
        values[Swizzled(dim + n, token, kTokens)] = *reinterpret_cast<const __half*>(&bits);
      }
    }
  }
}

// Softmax state of a warp's rows; a lane has rows G and G + 8 of every row tile.
template <int D>
struct TileState {
  float acc[kValueDims<D> / 8][4];
  float m[2], l[2];  // reference in log2 units; the lane's part of the sum of weights
};
template <int D>
using RowState = TileState<D>[kRowTiles];

// Keys of one step of a page: few, for want of registers.
inline constexpr int kStepKeys = 32;
using StepScores = float[kRowTiles][kStepKeys / 8][4];

// Scores of the warp's rows against kStepKeys keys: z[tile][n] for keys first_key + 8 n + 2 t, + 1,
// rows G and G + 8.
template <int D, int kBits>
__device__ __forceinline__ void Scores(const Shared<D, kBits>& shared, int first_key, int warp, int lane,
                                       StepScores& z) {
  const int in_matrix = lane & 7, matrix = lane >> 3;
  const uint32_t queries = ptx::SharedAddress(shared.queries) +
                           (kWarpRows * warp + in_matrix + 8 * (matrix & 1)) * (2 * D);
  const uint32_t keys =
      ptx::SharedAddress(shared.keys) + (first_key + 8 * (matrix >> 1) + in_matrix) * (2 * D);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) z[tile][n][c] = 0.0f;
    }
  }
#pragma unroll 4
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      ptx::LoadMatrix(a[tile],
                      queries + tile * 16 * (2 * D) + (((2 * k + (matrix >> 1)) ^ in_matrix) << 4));
    }
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; n += 2) {
      uint32_t b[4];
      ptx::LoadMatrix(b, keys + n * 8 * (2 * D) + (((2 * k + (matrix & 1)) ^ in_matrix) << 4));
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        ptx::MmaF16(z[tile][n], a[tile], b[0], b[1]);
        ptx::MmaF16(z[tile][n + 1], a[tile], b[2], b[3]);
      }
    }
  }
}

// Scales and masks the scores of one row tile and moves the reference to the largest of them.
// last_key: of row G, row G + 8: keys beyond are not seen; relative to the step.
template <int D, bool kIsEncoded, int kBits>
__device__ __forceinline__ void ScaleScores(const Shared<D, kBits>& shared, int first_row, int lane,
                                            const int (&last_key)[2], float (&z)[kStepKeys / 8][4],
                                            TileState<D>& state) {
  const int row = first_row + (lane >> 2), t = lane & 3;
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float scale = shared.scale[row + 8 * half];
    const float beta = kIsEncoded ? shared.beta[row + 8 * half] : 0.0f;
    float top = kNone;
#pragma unroll
    for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = z[n][2 * half + c];
        score = kIsEncoded || 8 * n + 2 * t + c <= last_key[half] ? fmaf(score, scale, beta)
                                                                  : -__builtin_huge_valf();
        top = fmaxf(top, score);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float m = fmaxf(state.m[half], top);
    factor[half] = ptx::Exp2(state.m[half] - m);
    state.m[half] = m;
  }
  if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) state.l[half] *= factor[half];
#pragma unroll
  for (int i = 0; i < kValueDims<D> / 8; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) state.acc[i][c] *= factor[c >> 1];
  }
}

// Adds the page in shared memory. last_key: of rows G, G + 8 of every tile: keys beyond are not
// seen.
template <int D, bool kIsEncoded, int kBits>
__device__ __forceinline__ void AttendPage(const Shared<D, kBits>& shared, int first_dim, int warp,
                                           int lane, const int (&last_key)[kRowTiles][2],
                                           RowState<D>& state) {
  const int in_matrix = lane & 7, matrix = lane >> 3;
  const uint32_t values = ptx::SharedAddress(shared.values) +
                          (first_dim + 8 * (matrix >> 1) + in_matrix) * (2 * kTokens);
#pragma unroll 1
  for (int first_key = 0; first_key < kTokens; first_key += kStepKeys) {
    StepScores z;
    Scores<D>(shared, first_key, warp, lane, z);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      ScaleScores<D, kIsEncoded>(shared, kWarpRows * warp + 16 * tile, lane,
                                 {last_key[tile][0] - first_key, last_key[tile][1] - first_key},
                                 z[tile], state[tile]);
    }
#pragma unroll
    for (int k = 0; k < kStepKeys / 16; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // (keys 16 k + 8 (i >> 1) + 2 t, row G + 8 (i & 1))
          const float* pair = &z[tile][2 * k + (i >> 1)][2 * (i & 1)];
          TileState<D>& sums = state[tile];
          const float m = sums.m[i & 1] - kHeadroom;
          const float first = ptx::Exp2(pair[0] - m), second = ptx::Exp2(pair[1] - m);
          sums.l[i & 1] += first + second;
          a[tile][i] = ptx::PackF16(first, second);
        }
      }
      const uint32_t piece = ((first_key >> 3) + 2 * k + (matrix & 1)) ^ in_matrix;
#pragma unroll
      for (int i = 0; i < kValueDims<D> / 8; i += 2) {
        uint32_t b[4];
        ptx::LoadMatrix(b, values + i * 8 * (2 * kTokens) + (piece << 4));
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          ptx::MmaF16(state[tile].acc[i], a[tile], b[0], b[1]);
          ptx::MmaF16(state[tile].acc[i + 1], a[tile], b[2], b[3]);
        }
      }
    }
  }
}

// Over the four lanes of a row.
__device__ __forceinline__ float SumOfRow(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Notes the mass of the BF16 pages, which come first: the mean of the values counts for the encoded
// ones only.
template <int D, int kBits>
__device__ __forceinline__ void NoteRowMass(int warp, int lane, const RowState<D>& state,
                                            Shared<D, kBits>& shared) {
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const TileState<D>& sums = state[i >> 1];
    const float l = SumOfRow(sums.l[i & 1]);
    if ((lane & 3) == 0)
      shared.row_mass[kWarpRows * warp + (lane >> 2) + 8 * i] = make_float2(sums.m[i & 1], l);
  }
  __syncwarp();
}

// Writes the partial result of the warp's rows.
template <int D, int kBits>
__device__ __forceinline__ void StoreRows(const PrefillParams& params, const Place& place, int warp,
                                          int lane, const Shared<D, kBits>& shared, RowState<D>& state) {
  const int row = lane >> 2, t = lane & 3;
  const int64_t num_rows = static_cast<int64_t>(params.num_tokens) * params.kv_heads * params.group;
#pragma unroll
  for (int part = 0; part < 2 * kRowTiles; ++part) {
    const int tile = part >> 1, half = part & 1, own_row = kWarpRows * warp + row + 8 * part;
    const TileState<D>& sums = state[tile];
    const float l = SumOfRow(sums.l[half]);
    const float2 rows = shared.row_mass[own_row];
    const float code_l = l - rows.y * ptx::Exp2(rows.x - sums.m[half]);
    int64_t index = 0;
    if (!FindRow(params, place, own_row, index)) continue;
    const int64_t record = place.split * num_rows + index;
    const float inverse = l > 0.0f ? 1.0f / l : 0.0f;
#pragma unroll
    for (int i = 0; i < kValueDims<D> / 8; ++i) {
      const int dim = place.first_dim + 8 * i + 2 * t;
      float2 x = make_float2(state[tile].acc[i][2 * half] * inverse,
                             state[tile].acc[i][2 * half + 1] * inverse);
      if (params.value_mean != nullptr) {
        x.x = fmaf(code_l * inverse, params.value_mean[place.head * D + dim], x.x);
        x.y = fmaf(code_l * inverse, params.value_mean[place.head * D + dim + 1], x.y);
      }
      *reinterpret_cast<float2*>(params.partial_outputs + record * D + dim) = x;
    }
    if (t == 0 && place.first_dim == 0) {
      params.partial_lses[record] =
          l > 0.0f ? (sums.m[half] - kHeadroom + ptx::Log2(l)) * 0.6931471805599453f
                   : -__builtin_huge_valf();
    }
  }
}

// The BF16 pages that a tile sees, its own first, then by position: the sink and the pages of the
// recent window.
template <int D, int kBits>
__device__ __forceinline__ void AttendRowPages(const PrefillParams& params, const Place& place,
                                               int warp, int lane, Shared<D, kBits>& shared,
                                               RowState<D>& state) {
  const int first_recent = max(place.tile - params.recent / kTokens, 0);
  const int end = params.first_position + params.num_tokens;
#pragma unroll 1
  for (int n = -1; n < place.tile; ++n) {
    const int page = n < 0 ? place.tile : n;
    if (page >= params.sink / kTokens && page < first_recent) continue;
    __syncthreads();
    ConvertRows<D>(
        params.row_pool +
            (static_cast<int64_t>(params.row_table[page]) * params.kv_heads + place.head) *
                device::Bf16BlockBytes(D),
        min(end - page * kTokens, kTokens), shared);
    __syncthreads();
    int last_key[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      last_key[i >> 1][i & 1] =
          n < 0 ? (kWarpRows * warp + (lane >> 2) + 8 * i) % kTokens : kTokens - 1;
    }
    AttendPage<D, false>(shared, place.first_dim, warp, lane, last_key, state);
  }
}

template <int D, int kBits>
__global__ void __launch_bounds__(kThreads, 2)
    PrefillKernel(const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  Shared<D, kBits>& shared = *reinterpret_cast<Shared<D, kBits>*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_parts = (params.group * kTokens + kRows - 1) / kRows,
            parts = row_parts * kValueParts<D>;
  // The tiles with most pages first.
  Place place;
  place.tile = (params.first_position + params.num_tokens - 1) / kTokens -
               static_cast<int>(blockIdx.x) / parts;
  place.first_row = static_cast<int>(blockIdx.x) % row_parts * kRows;
  place.first_dim = static_cast<int>(blockIdx.x) % parts / row_parts * kValueDims<D>;
  place.head = blockIdx.y;
  place.split = blockIdx.z;
  const int num_pages = max(place.tile - (params.recent + params.sink) / kTokens, 0);
  const int rows_alone = params.row_queries != nullptr ? 1 : 0;
  const int splits = params.num_splits - rows_alone, split = place.split - rows_alone;
  const int first = split < 0 ? 0 : num_pages * split / splits,
            last = split < 0 ? 0 : num_pages * (split + 1) / splits;
  LoadQueries<D>(params, place, warp, lane, shared);
  RowState<D> state;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kValueDims<D> / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) state[tile].acc[i][c] = 0.0f;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state[tile].m[half] = kNone;
      state[tile].l[half] = 0.0f;
    }
  }
  if (first < last) RequestBlock<D>(params, place, first, 0, shared);
  if (place.split == 0) AttendRowPages<D>(params, place, warp, lane, shared, state);
  NoteRowMass<D>(warp, lane, state, shared);
  const int all_keys[kRowTiles][2] = {};  // encoded pages have no mask
#pragma unroll 1
  for (int page = first; page < last; ++page) {
    ptx::CopyAsyncWaitAll();
    __syncthreads();  // the block is there, and nobody reads the page before
    if (page + 1 < last) RequestBlock<D>(params, place, page + 1, (page + 1 - first) & 1, shared);
    if (params.page_beta != nullptr) LoadPageBeta<D>(params, place, page, shared);
    DecodeBlock<D>(shared.staged[(page - first) & 1], place.first_dim, shared);
    __syncthreads();
    AttendPage<D, true>(shared, place.first_dim, warp, lane, all_keys, state);
  }
  StoreRows<D>(params, place, warp, lane, shared, state);
}

}  // namespace oscar::affine::prefill
