// Decode attention over INT2 pages and BF16 rows in one launch (gpu.md 5). A persistent CTA follows its items; its warps own
// whole pages and meet only when an item ends. What differs by codec is in codec/affine/tile.cuh, resources in
// decode_config.h, the copy ring in page_ring.cuh, the plan in ../decode_plan.h.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/tile.cuh"
#include "src/kv/kernels/cuda/ptx/launch.cuh"
#include "src/kv/kernels/cuda/sm90/decode_config.h"
#include "src/kv/kernels/cuda/sm90/page_ring.cuh"

namespace oscar::kernels::cuda::sm90 {

inline constexpr float kEmptyReference = -1e30f;  // m of a part without tokens; its l is 0

// Running softmax state of one warp for one item. The lane's heads: t (head tile 4) or 2t, 2t + 1 (head tile 8).
template <class Config>
struct WarpState {
  static constexpr int kD = Config::kHeadDim;
  static constexpr int kHeads = Config::kHeadTile / 4;  // of a lane

  float acc[kD / 16][4];
  float m[kHeads], l[kHeads], u[kHeads];
  bool is_first;

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[i][c] = 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) m[h] = l[h] = u[h] = 0.0f;
    is_first = true;
  }
  __device__ __forceinline__ void Scale(const float (&factor)[kHeads]) {
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[i][c] *= factor[kHeads == 1 ? 0 : (c & 1)];
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      l[h] *= factor[h];
      u[h] *= factor[h];
    }
  }
  // Moves the reference so that the largest `excess` over all lanes of a head becomes `target`; it is never lowered.
  // Returns by how much it rose.
  __device__ __forceinline__ void Raise(const float (&largest)[kHeads], float target, float (&shift)[kHeads]) {
    float factor[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float x = largest[h];
#pragma unroll
      for (int mask = 4; mask <= 16; mask <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
      shift[h] = is_first ? x - target : fmaxf(0.0f, x - target);
      m[h] += shift[h];
      factor[h] = is_first ? 0.0f : ptx::Exp2(-shift[h]);
    }
    Scale(factor);
    is_first = false;
  }
};

// Adds an INT2 page. The reference in `state` is relative to beta, that is m - kappa (q . mu).
template <class Config>
__device__ __forceinline__ void AttendPage(uint32_t block, int lane,
                                           const affine::device::Int2Query<Config::kHeadDim, Config::kHeadTile>& query,
                                           WarpState<Config>& state) {
  namespace tile = affine::device;
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  const int row = lane >> 2;
  float z[8][kHeads];  // relative to m, log2 units
  tile::PageScores<kD, Config::kHeadTile>(block, lane, query, z);
  {
    __half2 pairs[8];
    tile::LoadPairs(block + tile::KeyPairsOffset(kD), row, pairs);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 pair = __half22float2(pairs[i]);
      const float unit = pair.x * query.inverse_scale;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) z[i][h] = fmaf(z[i][h], unit, fmaf(pair.y, query.offset_factor[h], -state.m[h]));
    }
  }
  __half2 pairs[8];  // of the values: (scale, offset)
  tile::LoadPairs(block + tile::ValuePairsOffset(kD), row, pairs);
  // Sets or raises the reference so that no weight passes 2^10: by the largest score and the largest scale.
  auto raise = [&] {
    // Head tile 8 holds p itself in fp16, too.
    float largest_scale = kHeads == 2 ? 0x1p-5f : 1e-30f, top[kHeads], shift[kHeads];
#pragma unroll
    for (int i = 0; i < 8; ++i) largest_scale = fmaxf(largest_scale, __low2float(pairs[i]));
    const float scale_bits = ptx::Log2(largest_scale);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      top[h] = z[0][h];
#pragma unroll
      for (int i = 1; i < 8; ++i) top[h] = fmaxf(top[h], z[i][h]);
      top[h] += scale_bits;
    }
    state.Raise(top, 10.0f, shift);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) z[i][h] -= shift[h];
    }
  };
  uint32_t packed[4 * kHeads];  // weights p s_v of tokens (16 j + G, + 8) or of heads (2t, 2t + 1), times the class factor
  float l[kHeads], u[kHeads];
  auto weigh = [&] {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      l[h] = state.l[h];
      u[h] = state.u[h];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float p[2][kHeads];
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const float offset = __high2float(pairs[2 * j + a]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          p[a][h] = ptx::Exp2(z[2 * j + a][h]);
          l[h] += p[a][h];
          u[h] = fmaf(p[a][h], offset, u[h]);
        }
      }
      tile::PackWeights<kHeads>(j, p, pairs[2 * j], pairs[2 * j + 1], &packed[j * kHeads]);
    }
  };
  if (state.is_first) raise();
  weigh();
  // A weight of 2^15 or more (or infinite, or not a number: larger patterns still), or sums near the end of fp32: rare.
  uint32_t largest = packed[0];
#pragma unroll
  for (int i = 1; i < 4 * kHeads; ++i) largest = __vmaxu2(largest, packed[i]);
  bool too_large = ((largest + 0x08000800u) & 0x80008000u) != 0;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) too_large |= !(l[h] + fabsf(u[h]) < 0x1p100f);
  if (__any_sync(~0u, too_large)) {
    raise();
    weigh();
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    state.l[h] = l[h];
    state.u[h] = u[h];
  }
  uint32_t weights[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (kHeads == 1) {
      // Column 2h + a holds tokens 8 a .. 8 a + 7 of head h; the other half of the operand is zero.
      const uint32_t both = ptx::TransposeMatrix(packed[j]);
      weights[2 * j] = (row & 1) ? 0u : both;
      weights[2 * j + 1] = (row & 1) ? both : 0u;
    } else {
      weights[2 * j] = ptx::TransposeMatrix(packed[2 * j]);
      weights[2 * j + 1] = ptx::TransposeMatrix(packed[2 * j + 1]);
    }
  }
  tile::AccumulateValues<kD>(block + tile::ValueCodesOffset(kD), lane, weights, state.acc);
}

// Query operand for BF16 rows: head tile 4 has every head in two columns, for the two terms of p.
template <class Config>
struct RowQuery {
  uint32_t b[Config::kHeadDim / 16][2];
  __device__ __forceinline__ void Load(const uint16_t* query, int lane) {
    const int row = lane >> 2, t = lane & 3;
    const uint16_t* q = query + (Config::kHeadTile == 4 ? row >> 1 : row) * (Config::kHeadDim + 8) + 2 * t;
#pragma unroll
    for (int k = 0; k < Config::kHeadDim / 16; ++k) {
      b[k][0] = *reinterpret_cast<const uint32_t*>(q + 16 * k);
      b[k][1] = *reinterpret_cast<const uint32_t*>(q + 16 * k + 8);
    }
  }
};

// Scores of 16 BF16 rows, log2 units, not yet relative to m: z[a][h] for token G + 8 a; rows from rows_left on are -inf.
template <class Config>
__device__ __forceinline__ void RowScores(uint32_t keys, int lane, const RowQuery<Config>& query, float kappa, int rows_left,
                                          float (&z)[2][Config::kHeadTile / 4]) {
  constexpr int kD = Config::kHeadDim;
  const int in_matrix = lane & 7, matrix = lane >> 3, row = lane >> 2;
  const uint32_t row_address = keys + (in_matrix + 8 * (matrix & 1)) * (2 * kD);
  float c[4] = {};
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t a[4];
    ptx::LoadMatrix(a, row_address + (((2 * k + (matrix >> 1)) ^ in_matrix) << 4));
    ptx::MmaBf16(c, a, query.b[k][0], query.b[k][1]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int h = 0; h < Config::kHeadTile / 4; ++h) {
      z[half][h] = row + 8 * half < rows_left ? kappa * c[2 * half + h] : -__builtin_huge_valf();
    }
  }
}

// Adds 16 BF16 value rows. z as from RowScores. The accumulators hold 2^-24 times the sum, as for INT2 pages, which bf16 terms
// of p carry without loss.
template <class Config>
__device__ __forceinline__ void AttendValueRows(uint32_t values, int lane, int rows_left, float (&z)[2][Config::kHeadTile / 4],
                                                WarpState<Config>& state) {
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  const int t = lane & 3;
  bool too_large = state.is_first;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    z[0][h] -= state.m[h];
    z[1][h] -= state.m[h];
    too_large |= fmaxf(z[0][h], z[1][h]) > 40.0f;
  }
  if (__any_sync(~0u, too_large)) {
    float top[kHeads], shift[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) top[h] = fmaxf(z[0][h], z[1][h]);
    state.Raise(top, 10.0f, shift);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      z[0][h] -= shift[h];
      z[1][h] -= shift[h];
    }
  }
  // p = hi + lo, both bf16: one term alone would cost 1.7e-3.
  uint32_t hi[2], lo[2];  // by half (head tile 8: packed heads; head tile 4: packed halves in [0])
  float p[2][kHeads];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      p[half][h] = ptx::Exp2(z[half][h]);
      state.l[h] += p[half][h];
      p[half][h] *= 1.0f / affine::device::kValueProductScale;
    }
  }
  uint32_t first_hi[2], first_lo[2];  // B operands: tokens 0-7, 8-15
  if constexpr (kHeads == 1) {
    hi[0] = ptx::PackBf16(p[0][0], p[1][0]);
    lo[0] = ptx::PackBf16(p[0][0] - __uint_as_float(hi[0] << 16), p[1][0] - __uint_as_float(hi[0] & 0xFFFF0000u));
    first_hi[0] = ptx::TransposeMatrix(__byte_perm(hi[0], lo[0], 0x5410));
    first_hi[1] = ptx::TransposeMatrix(__byte_perm(hi[0], lo[0], 0x7632));
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      hi[half] = ptx::PackBf16(p[half][0], p[half][1]);
      lo[half] = ptx::PackBf16(p[half][0] - __uint_as_float(hi[half] << 16),
                               p[half][1] - __uint_as_float(hi[half] & 0xFFFF0000u));
      first_hi[half] = ptx::TransposeMatrix(hi[half]);
      first_lo[half] = ptx::TransposeMatrix(lo[half]);
    }
  }
  // Rows past the end may hold anything, and 0 * NaN is NaN: select zeros.
  uint32_t keep[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    keep[half] = (2 * t + 8 * half < rows_left ? 0x0000FFFFu : 0u) | (2 * t + 1 + 8 * half < rows_left ? 0xFFFF0000u : 0u);
  }
  const int in_matrix = lane & 7, matrix = lane >> 3;
  const uint32_t row_address = values + (in_matrix + 8 * (matrix >> 1)) * (2 * kD);
#pragma unroll
  for (int i = 0; i < kD / 16; ++i) {
    uint32_t a[4];
    ptx::LoadMatrixTransposed(a, row_address + (((2 * i + (matrix & 1)) ^ in_matrix) << 4));
    a[0] &= keep[0];
    a[1] &= keep[0];
    a[2] &= keep[1];
    a[3] &= keep[1];
    ptx::MmaBf16(state.acc[i], a, first_hi[0], first_hi[1]);
    if constexpr (kHeads == 2) ptx::MmaBf16(state.acc[i], a, first_lo[0], first_lo[1]);
  }
}

// Sum over the 8 rows G: afterwards every lane has the total of its heads.
__device__ __forceinline__ float SumOverRows(float x) {
#pragma unroll
  for (int mask = 4; mask <= 16; mask <<= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// Notes the mass of the BF16 rows, before the first page: the mean of the values counts for the INT2 part only.
template <class Config>
__device__ __forceinline__ void NoteRowMass(typename Config::Shared& shared, int warp, int lane, const WarpState<Config>& state) {
#pragma unroll
  for (int h = 0; h < WarpState<Config>::kHeads; ++h) {
    const float l = SumOverRows(state.l[h]);
    float* stats = shared.row_stats[warp][WarpState<Config>::kHeads * (lane & 3) + h];
    if (lane < 4) {
      stats[0] = state.m[h];
      stats[1] = l;
    }
  }
}

// Writes the warp's accumulators and sums where MergeWarps reads them.
template <class Config>
__device__ __forceinline__ void PublishWarp(typename Config::Shared& shared, int warp, int lane, bool has_row_mass,
                                            WarpState<Config>& state) {
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  const int row = lane >> 2, t = lane & 3;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float l = SumOverRows(state.l[h]), u = SumOverRows(state.u[h]);
    constexpr float kScale = affine::device::kValueProductScale;
    const int head = kHeads * t + h;
    if (row == 0) {
      const float* rows = shared.row_stats[warp][head];
      const float code_l = has_row_mass && rows[1] > 0.0f ? l - rows[1] * ptx::Exp2(rows[0] - state.m[h]) : l;
      *reinterpret_cast<float4*>(shared.stats[warp][head]) = make_float4(state.is_first ? kEmptyReference : state.m[h], l, code_l, 0.0f);
    }
    float* out = shared.merge[warp][head];
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float value = kHeads == 1 ? state.acc[i][2 * half] + state.acc[i][2 * half + 1] : state.acc[i][2 * half + h];
        out[(16 * i + 8 * half + row + 8 * t) % kD] = fmaf(value, kScale, u);
      }
    }
  }
}

// Over aligned groups of kCount lanes (a power of two).
template <int kCount>
__device__ __forceinline__ float MaxOverLanes(float x) {
#pragma unroll
  for (int mask = 1; mask < kCount; mask <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}
template <int kCount>
__device__ __forceinline__ float SumOverLanes(float x) {
#pragma unroll
  for (int mask = 1; mask < kCount; mask <<= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// Neighbouring dimensions of a head that one lane joins: as many as leave work for all warps.
template <class Config>
constexpr int MergeWidth() {
  constexpr int d = Config::kHeadDim, lanes = 32 * Config::kWarps;
  if (d % 128 == 0 && Config::kHeadTile * d >= 4 * lanes) return 4;
  return d % 64 == 0 && Config::kHeadTile * d >= 2 * lanes ? 2 : 1;
}
template <class Config>
inline constexpr int kMergeWidth = MergeWidth<Config>();
template <int kWidth>
struct alignas(4 * kWidth) FloatGroup {
  float x[kWidth];
};

// Joins the warps of an item into its partial record. A warp takes segments of 32 kMergeWidth dimensions of one head.
template <class Config>
__device__ __forceinline__ void MergeWarps(const typename Config::Shared& shared, const DecodeParams& params, int slot, int warp,
                                           int lane) {
  constexpr int kD = Config::kHeadDim, kHeadTile = Config::kHeadTile, kWarps = Config::kWarps, kWidth = kMergeWidth<Config>;
  constexpr int kSegments = kD / (32 * kWidth);
  using Group = FloatGroup<kWidth>;
#pragma unroll 1
  for (int segment = warp; segment < params.group * kSegments; segment += kWarps) {
    const int head = segment / kSegments;
    const float4 stats = *reinterpret_cast<const float4*>(shared.stats[lane % kWarps][head]);
    const float m = MaxOverLanes<kWarps>(stats.x);
    const float e = ptx::Exp2(stats.x - m);
    const int dim = (segment % kSegments * 32 + lane) * kWidth;
    const int rotated = (dim + 8 * (head / (kHeadTile / 4))) % kD;
    Group sum = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const Group part = *reinterpret_cast<const Group*>(&shared.merge[w][head][rotated]);
      const float weight = __shfl_sync(~0u, e, w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum.x[i] = fmaf(weight, part.x[i], sum.x[i]);
    }
    const size_t record = static_cast<size_t>(slot) * kHeadTile + head;
    *reinterpret_cast<Group*>(params.partials + record * kD + dim) = sum;
    if (segment % kSegments == 0) {
      // Both halves of the warp hold the same lanes: one sums l, the other its INT2 part.
      const float mass = SumOverLanes<kWarps>(e * (lane < 16 ? stats.y : stats.z)), code_mass = __shfl_sync(~0u, mass, 16);
      if (lane == 0) reinterpret_cast<float4*>(params.partial_stats)[record] = make_float4(m, mass, code_mass, 0.0f);
    }
  }
}

// Joins the partial records of a (sequence, KV head) and writes the output rows; by the CTA that arrived last.
template <class Config>
__device__ __forceinline__ void MergeParts(const DecodeParams& params, const DecodeItem& item, int warp, int lane) {
  constexpr int kD = Config::kHeadDim, kHeadTile = Config::kHeadTile, kWidth = kMergeWidth<Config>;
  constexpr int kSegments = kD / (32 * kWidth);
  constexpr int kAtOnce = 16;  // loads in flight
  using Group = FloatGroup<kWidth>;
  const int slots = item.pair_num_slots;
  const float4* stats = reinterpret_cast<const float4*>(params.partial_stats) + static_cast<size_t>(item.pair_first_slot) * kHeadTile;
  const float* parts = params.partials + static_cast<size_t>(item.pair_first_slot) * kHeadTile * kD;
#pragma unroll 1
  for (int segment = warp; segment < params.group * kSegments; segment += Config::kWarps) {
    const int head = segment / kSegments;
    const int dim = (segment % kSegments * 32 + lane) * kWidth;
    float m = kEmptyReference, l = 0.0f, code_l = 0.0f;
    Group sum = {};
#pragma unroll 1
    for (int first = 0; first < slots; first += kAtOnce) {
      const int count = min(kAtOnce, slots - first), own = lane % kAtOnce;
      const float4 record = own < count ? __ldcg(stats + (first + own) * kHeadTile + head) : make_float4(kEmptyReference, 0.0f, 0.0f, 0.0f);
      const float* row = parts + (static_cast<size_t>(first) * kHeadTile + head) * kD + dim;
      Group part[kAtOnce];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        part[s] = {};
        if (s >= count) continue;
        const float* source = row + s * (kHeadTile * kD);
        if constexpr (kWidth == 1) part[s].x[0] = __ldcg(source);
        if constexpr (kWidth == 2) *reinterpret_cast<float2*>(&part[s]) = __ldcg(reinterpret_cast<const float2*>(source));
        if constexpr (kWidth == 4) *reinterpret_cast<float4*>(&part[s]) = __ldcg(reinterpret_cast<const float4*>(source));
      }
      const float new_m = fmaxf(m, MaxOverLanes<kAtOnce>(record.x));
      const float old = ptx::Exp2(m - new_m), e = own < count ? ptx::Exp2(record.x - new_m) : 0.0f;
      m = new_m;
      l = fmaf(l, old, SumOverLanes<kAtOnce>(e * record.y));
      if (params.value_mean != nullptr) code_l = fmaf(code_l, old, SumOverLanes<kAtOnce>(e * record.z));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum.x[i] *= old;
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        const float weight = __shfl_sync(~0u, e, s);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum.x[i] = fmaf(weight, part[s].x[i], sum.x[i]);
      }
    }
    const size_t index =
        ((static_cast<size_t>(item.sequence) * params.kv_heads + item.head) * params.group + head) * kD + dim;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (params.value_mean != nullptr) sum.x[i] = fmaf(code_l, params.value_mean[item.head * kD + dim + i], sum.x[i]);
      const float result = l > 0.0f ? sum.x[i] / l : (l == 0.0f ? 0.0f : l);
      params.out[index + i] = static_cast<uint16_t>(ptx::PackBf16(result, 0.0f));
      if (params.out_f32 != nullptr) params.out_f32[index + i] = result;
    }
  }
}

// Requests the queries of an item into shared memory; heads past the group are zero.
template <class Config>
__device__ __forceinline__ void RequestQuery(typename Config::Shared& shared, const DecodeParams& params, const DecodeItem& item,
                                             int buffer) {
  constexpr int kPieces = Config::kHeadDim / 8;  // of a row
  const size_t first_head = (static_cast<size_t>(item.sequence) * params.kv_heads + item.head) * params.group;
  for (int piece = threadIdx.x; piece < Config::kHeadTile * kPieces; piece += Config::kThreads) {
    const int head = piece / kPieces, part = piece % kPieces;
    const bool valid = head < params.group;
    ptx::CopyAsync16(ptx::SharedAddress(&shared.query[buffer][head][8 * part]),
                     params.queries + (first_head + (valid ? head : 0)) * Config::kHeadDim + 8 * part, valid);
  }
  if (threadIdx.x < Config::kHeadTile) {
    const bool valid = params.beta != nullptr && static_cast<int>(threadIdx.x) < params.group;
    const float* beta = valid ? params.beta + first_head + threadIdx.x : params.partial_stats;  // any address when not read
    ptx::CopyAsync4(ptx::SharedAddress(&shared.beta[buffer][threadIdx.x]), beta, valid);
  }
}

// One warp per pair of heads, which share a scale because a lane computes both. After the barrier that follows RequestQuery's
// wait; a barrier must follow.
template <class Config>
__device__ __forceinline__ void QuantizeQueries(typename Config::Shared& shared, const DecodeParams& params, int buffer, int warp,
                                                int lane) {
  constexpr int kHeads = Config::kHeadTile / 4;
  if (warp >= 4) return;
  affine::device::QuantizeQuery<Config::kHeadDim, kHeads>(
      shared.query[buffer][kHeads * warp], Config::kHeadDim + 8, params.kappa, lane, shared.query_high[kHeads * warp],
      shared.query_low[kHeads * warp], Config::kHeadDim / 4 + 4, &shared.query_scale[warp], &shared.query_sum[kHeads * warp]);
}

// The items of a CTA, one after the other, by thread 0: its static list, then claims on the tail. A claim takes a trip to
// memory and the item another, so what AskForItem returns is resolved an item later, and the item is used an item after that.
inline constexpr int kNoItem = -1;
__device__ __forceinline__ int AskForItem(const DecodeParams& params, ItemSource& source) {
  if (source.next < source.end) return source.next++;
  if (source.exhausted || params.tail_first == params.tail_end) return kNoItem;
  return -2 - atomicAdd(params.tail_counter, 1);
}
// Index in params.items, or kNoItem. At most one answer may be unresolved.
__device__ __forceinline__ int ResolveItem(const DecodeParams& params, ItemSource& source, int answer) {
  if (answer >= kNoItem) return answer;
  const int claim = -2 - answer, tail_items = params.tail_end - params.tail_first;
  if (claim < tail_items) return params.tail_first + claim;
  // Every CTA fails exactly once; the last failure leaves the counter at zero for the next launch.
  source.exhausted = 1;
  if (claim == tail_items + static_cast<int>(gridDim.x) - 1) *params.tail_counter = 0;
  return kNoItem;
}

// Requests the item into shared.staged; by one thread.
template <class Config>
__device__ __forceinline__ void RequestItem(typename Config::Shared& shared, const DecodeParams& params, int index) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(DecodeItem)); i += 16) {
    ptx::CopyAsync16(ptx::SharedAddress(&shared.staged) + i, reinterpret_cast<const uint8_t*>(params.items + index) + i, true);
  }
}

// Counts a published part in; true for the last one of its pair, whose caller then sees all parts. By one thread, after a
// barrier behind the stores of the part.
__device__ __forceinline__ bool ArriveAtPair(const DecodeParams& params, const DecodeItem& item) {
  int32_t* counter = params.pair_counters + item.sequence * params.kv_heads + item.head;
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  if (before != item.pair_num_slots - 1) return false;
  *counter = 0;
  return true;
}

template <class Config, DecodeVariant kVariant = DecodeVariant::kNormal>
__global__ void __launch_bounds__(Config::kThreads, 1) DecodeAttentionKernel(const __grid_constant__ DecodeParams params) {
  constexpr int kD = Config::kHeadDim, kHeads = Config::kHeadTile / 4, kWarps = Config::kWarps;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  typename Config::Shared& shared = *reinterpret_cast<typename Config::Shared*>(shared_bytes);
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);

  PageRing<Config, kVariant> ring(shared, warp, lane);
  int answer = kNoItem;  // thread 0: to its last AskForItem
  {
    const DecodeStart& start = params.starts[blockIdx.x];
    const DecodeItem first = start.first;
    const bool has_first = start.has_first;
    if (has_first) ring.RequestFirstIds(params, first, 0);
    if (threadIdx.x == 0) {
      shared.items[0] = first;
      shared.source = {start.next, start.end, 0};
      shared.is_pair_done = 0;
      shared.is_valid[0] = has_first;
    }
    ptx::WaitForPredecessors();
    if (has_first) RequestQuery<Config>(shared, params, first, 0);
    if (threadIdx.x == 0) {
      if (!has_first) {
        const int index = ResolveItem(params, shared.source, AskForItem(params, shared.source));
        if (index != kNoItem) shared.items[0] = params.items[index];
        shared.is_valid[0] = index != kNoItem;
      }
      const int second = ResolveItem(params, shared.source, AskForItem(params, shared.source));
      if (second != kNoItem) shared.items[1] = params.items[second];
      shared.is_valid[1] = second != kNoItem;
      answer = AskForItem(params, shared.source);
    }
    __syncthreads();
    if (shared.is_valid[0]) {
      if (!has_first) {
        ring.RequestFirstIds(params, shared.items[0], 0);
        RequestQuery<Config>(shared, params, shared.items[0], 0);
      }
      ring.Enter(0);
      while (ring.HasFreeStage() && ring.Fetch(params)) {
      }
    }
    ptx::LaunchDependents();
    ptx::CopyAsyncWaitAll();
    __syncthreads();
    QuantizeQueries<Config>(shared, params, 0, warp, lane);
    __syncthreads();
  }

  WarpState<Config> state;
#pragma unroll 1
  for (int current = 0; shared.is_valid[current]; current ^= 1) {
    if (threadIdx.x == 0) {
      const int index = ResolveItem(params, shared.source, answer);
      shared.is_staged_valid = index != kNoItem;
      if (index != kNoItem) RequestItem<Config>(shared, params, index);
      answer = AskForItem(params, shared.source);
    }
    if (shared.is_valid[current ^ 1]) {
      ring.RequestFirstIds(params, shared.items[current ^ 1], current ^ 1);
      RequestQuery<Config>(shared, params, shared.items[current ^ 1], current ^ 1);
    }
    // Requests one more stage, of this item or the next; false when neither has any left.
    auto refill = [&] {
      if (ring.Fetch(params)) return true;
      if (ring.item_index() != current || !shared.is_valid[current ^ 1]) return false;
      ring.Enter(current ^ 1);
      return ring.Fetch(params);
    };
    while (ring.HasFreeStage() && refill()) {
    }

    state.Reset();
    int pages;
    {
      const DecodeItem& item = shared.items[current];
      const WarpShare<kWarps> share(item, warp);
      pages = share.num_pages;
      if (share.num_tiles > 0) {
        RowQuery<Config> query;
        query.Load(shared.query[current][0], lane);
        int rows_left = item.num_rows - 16 * (item.first_tile + warp);
#pragma unroll 1
        for (int tile = 0; tile < share.num_tiles; ++tile, rows_left -= 16 * kWarps) {
          float z[2][kHeads];
          const uint32_t keys = ring.Wait();
          if constexpr (kVariant != DecodeVariant::kLoadOnly) RowScores<Config>(keys, lane, query, params.kappa, rows_left, z);
          ring.Release();
          refill();
          const uint32_t values = ring.Wait();
          if constexpr (kVariant != DecodeVariant::kLoadOnly) AttendValueRows<Config>(values, lane, rows_left, z, state);
          ring.Release();
          refill();
        }
      }
      if (params.value_mean != nullptr) NoteRowMass<Config>(shared, warp, lane, state);
    }
    if (pages > 0) {
      affine::device::Int2Query<kD, Config::kHeadTile> query;
      query.Load(&shared.query_high[0][0], &shared.query_low[0][0], kD / 4 + 4, shared.query_scale, shared.query_sum, lane);
      const float* beta = &shared.beta[current][kHeads * (lane & 3)];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) state.m[h] -= beta[h];
#pragma unroll 1
      for (; pages > 0; --pages) {
        const uint32_t block = ring.Wait();
        if constexpr (kVariant != DecodeVariant::kLoadOnly) AttendPage<Config>(block, lane, query, state);
        if (!ring.Recycle(params)) refill();
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) state.m[h] += beta[h];
    }
    if (ring.item_index() == current) ring.Enter(current ^ 1);

    PublishWarp<Config>(shared, warp, lane, params.value_mean != nullptr, state);
    ptx::CopyAsyncWaitAll();
    const DecodeItem item = shared.items[current];
    __syncthreads();
    // Between these barriers: this item's part, the next item's query operands, the output of the pair that the item before
    // completed, and the item after the next.
    if (threadIdx.x == 0) {
      shared.items[current] = shared.staged;
      shared.is_valid[current] = shared.is_staged_valid;
    }
    MergeWarps<Config>(shared, params, item.slot, warp, lane);
    if (shared.is_valid[current ^ 1]) QuantizeQueries<Config>(shared, params, current ^ 1, kWarps - 1 - warp, lane);
    if (shared.is_pair_done) MergeParts<Config>(params, shared.done, warp, lane);
    __syncthreads();
    // The others go on; they look at the answer at the end of the next item.
    if (threadIdx.x == 0) {
      shared.done = item;
      shared.is_pair_done = ArriveAtPair(params, item);
    }
  }
  __syncthreads();
  if (shared.is_pair_done) MergeParts<Config>(params, shared.done, warp, lane);
}

}  // namespace oscar::kernels::cuda::sm90
