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

// Adds an INT2 page. beta: kappa (q . mu) of the lane's heads.
template <class Config>
__device__ __forceinline__ void AttendPage(uint32_t block, int lane,
                                           const codec::affine::device::Int2Query<Config::kHeadDim, Config::kHeadTile>& query,
                                           const float (&beta)[Config::kHeadTile / 4], WarpState<Config>& state) {
  namespace tile = codec::affine::device;
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  constexpr float kFactors[8] = {tile::kClassFactor<0>, tile::kClassFactor<1>, tile::kClassFactor<2>, tile::kClassFactor<3>,
                                 tile::kClassFactor<4>, tile::kClassFactor<5>, tile::kClassFactor<6>, tile::kClassFactor<7>};
  const int row = lane >> 2;
  float z[8][kHeads];  // relative to m, log2 units
  tile::PageScores<kD, Config::kHeadTile>(block, lane, query, z);
  {
    float scale[8], offset[8];
    tile::LoadPairs(block + tile::KeyPairsOffset(kD), row, scale, offset);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float start = fmaf(offset[i], query.offset_factor[h], beta[h] - state.m[h]);
        z[i][h] = fmaf(z[i][h], scale[i] * query.inverse_scale[h], start);
      }
    }
  }
  uint32_t packed[4 * kHeads];  // weights p s_v of tokens (16 j + G, + 8) or of heads (2t, 2t + 1), times the class factor
  float l[kHeads], u[kHeads];
  auto weigh = [&] {
    float scale[8], offset[8];
    tile::LoadPairs(block + tile::ValuePairsOffset(kD), row, scale, offset);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      l[h] = state.l[h];
      u[h] = state.u[h];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float weight[2][kHeads];
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const int i = 2 * j + a;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float p = ptx::Exp2(z[i][h]);
          l[h] += p;
          u[h] = fmaf(p, offset[i], u[h]);
          weight[a][h] = p * (scale[i] * kFactors[i]);
        }
      }
      if constexpr (kHeads == 1) {
        packed[j] = ptx::PackF16(weight[0][0], weight[1][0]);
      } else {
        packed[2 * j] = ptx::PackF16(weight[0][0], weight[0][1]);
        packed[2 * j + 1] = ptx::PackF16(weight[1][0], weight[1][1]);
      }
    }
  };
  weigh();
  // A weight of 2^15 or more (or infinite, or not a number: larger patterns still), or sums near the end of fp32.
  uint32_t largest = packed[0];
#pragma unroll
  for (int i = 1; i < 4 * kHeads; ++i) largest = __vmaxu2(largest, packed[i]);
  bool too_large = state.is_first || ((largest + 0x08000800u) & 0x80008000u) != 0;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) too_large |= !(l[h] + fabsf(u[h]) < 0x1p100f);
  if (__any_sync(~0u, too_large)) {
    float top[kHeads], shift[kHeads];
    float scale[8], offset[8];
    tile::LoadPairs(block + tile::ValuePairsOffset(kD), row, scale, offset);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      top[h] = kEmptyReference;
#pragma unroll
      for (int i = 0; i < 8; ++i) top[h] = fmaxf(top[h], z[i][h] + ptx::Log2(fmaxf(scale[i], 1e-30f)));
    }
    state.Raise(top, 10.0f, shift);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) z[i][h] -= shift[h];
    }
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
    const uint16_t* q = query + (Config::kHeadTile == 4 ? row >> 1 : row) * Config::kHeadDim + 2 * t;
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

// Adds 16 BF16 value rows. z as from RowScores.
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
    state.Raise(top, 0.0f, shift);
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

// Writes the warp's accumulators and sums where MergeWarps reads them.
template <class Config>
__device__ __forceinline__ void PublishWarp(typename Config::Shared& shared, int warp, int lane, PartKind kind,
                                            WarpState<Config>& state) {
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  const int row = lane >> 2, t = lane & 3;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int mask = 4; mask <= 16; mask <<= 1) {
      state.l[h] += __shfl_xor_sync(~0u, state.l[h], mask);
      state.u[h] += __shfl_xor_sync(~0u, state.u[h], mask);
    }
    const int head = kHeads * t + h;
    if (row == 0) {
      float* stats = shared.stats[warp][head];
      stats[0] = state.is_first ? kEmptyReference : state.m[h];
      stats[1] = state.l[h];
      stats[2] = state.u[h];
      stats[3] = kind == PartKind::kEncoded ? codec::affine::device::kValueProductScale : 1.0f;
    }
    float* out = shared.merge[warp][head];
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float value = kHeads == 1 ? state.acc[i][2 * half] + state.acc[i][2 * half + 1] : state.acc[i][2 * half + h];
        out[(16 * i + 8 * half + row + 8 * t) % kD] = value;
      }
    }
  }
}

// Joins the warps of an item into its partial record. A warp takes segments of 32 dimensions of one head.
template <class Config>
__device__ __forceinline__ void MergeWarps(const typename Config::Shared& shared, const DecodeParams& params, int slot, int warp,
                                           int lane) {
  constexpr int kD = Config::kHeadDim, kSegments = kD / 32, kHeadTile = Config::kHeadTile, kWarps = Config::kWarps;
  const int source = lane < kWarps ? lane : 0;
#pragma unroll 1
  for (int segment = warp; segment < kHeadTile * kSegments; segment += kWarps) {
    const int head = segment / kSegments;
    const float4 stats = *reinterpret_cast<const float4*>(shared.stats[source][head]);
    float m = stats.x;
#pragma unroll
    for (int mask = 1; mask <= 16; mask <<= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
    const float e = lane < kWarps ? ptx::Exp2(stats.x - m) : 0.0f;
    float l = e * stats.y, u = e * stats.z;
#pragma unroll
    for (int mask = 1; mask <= 16; mask <<= 1) {
      l += __shfl_xor_sync(~0u, l, mask);
      u += __shfl_xor_sync(~0u, u, mask);
    }
    const float factor = e * stats.w;
    const int dim = segment % kSegments * 32 + lane;
    const int rotated = (dim + 8 * (head / (kHeadTile / 4))) % kD;
    float x = u;
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) x = fmaf(__shfl_sync(~0u, factor, w), shared.merge[w][head][rotated], x);
    params.partials[(static_cast<size_t>(slot) * kHeadTile + head) * kD + dim] = x;
    if (dim == 0) {
      float2* record = reinterpret_cast<float2*>(params.partial_stats) + static_cast<size_t>(slot) * kHeadTile + head;
      *record = make_float2(m, l);
    }
  }
}

// Joins the partial records of a (sequence, KV head) and writes the output rows; by the CTA that arrived last.
template <class Config>
__device__ __forceinline__ void MergeParts(const DecodeParams& params, const DecodeItem& item, int warp, int lane) {
  constexpr int kD = Config::kHeadDim, kSegments = kD / 32, kHeadTile = Config::kHeadTile;
  const int slots = item.pair_num_slots;
  const float2* stats = reinterpret_cast<const float2*>(params.partial_stats) + static_cast<size_t>(item.pair_first_slot) * kHeadTile;
  const float* parts = params.partials + static_cast<size_t>(item.pair_first_slot) * kHeadTile * kD;
#pragma unroll 1
  for (int segment = warp; segment < params.group * kSegments; segment += Config::kWarps) {
    const int head = segment / kSegments;
    const int dim = segment % kSegments * 32 + lane;
    float m = kEmptyReference;
    for (int s = lane; s < slots; s += 32) m = fmaxf(m, __ldcg(stats + s * kHeadTile + head).x);
#pragma unroll
    for (int mask = 1; mask <= 16; mask <<= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
    float l = 0.0f, code_l = 0.0f, x = 0.0f;
#pragma unroll 1
    for (int first = 0; first < slots; first += 32) {
      float e = 0.0f;
      if (first + lane < slots) {
        const float2 record = __ldcg(stats + (first + lane) * kHeadTile + head);
        e = ptx::Exp2(record.x - m);
        l = fmaf(e, record.y, l);
        // The list is in slot order. The mean of the values counts for the INT2 part only.
        if (params.value_mean != nullptr && params.items[item.pair_first_slot + first + lane].kind == PartKind::kEncoded) {
          code_l = fmaf(e, record.y, code_l);
        }
      }
      const int count = min(32, slots - first);
#pragma unroll 8
      for (int s = 0; s < count; ++s) {
        x = fmaf(__shfl_sync(~0u, e, s), __ldcg(parts + (static_cast<size_t>(first + s) * kHeadTile + head) * kD + dim), x);
      }
    }
#pragma unroll
    for (int mask = 1; mask <= 16; mask <<= 1) l += __shfl_xor_sync(~0u, l, mask);
    if (params.value_mean != nullptr) {
#pragma unroll
      for (int mask = 1; mask <= 16; mask <<= 1) code_l += __shfl_xor_sync(~0u, code_l, mask);
      x = fmaf(code_l, params.value_mean[item.head * kD + dim], x);
    }
    const float result = l > 0.0f ? x / l : (l == 0.0f ? 0.0f : l);
    const size_t index =
        ((static_cast<size_t>(item.sequence) * params.kv_heads + item.head) * params.group + head) * kD + dim;
    params.out[index] = static_cast<uint16_t>(ptx::PackBf16(result, 0.0f));
    if (params.out_f32 != nullptr) params.out_f32[index] = result;
  }
}

// Starts a claim when the static list is used up. By thread 0; the answer is needed an item later, so nothing waits here.
__device__ __forceinline__ void ClaimItem(const DecodeParams& params, ItemSource& source) {
  if (source.next < source.end || source.exhausted || params.tail_first == params.tail_end) return;
  source.claim = atomicAdd(params.tail_counter, 1);
}
// Index of the CTA's next item in params.items, or -1. By thread 0, after ClaimItem.
__device__ __forceinline__ int NextItem(const DecodeParams& params, ItemSource& source) {
  if (source.next < source.end) return source.next++;
  if (source.exhausted || params.tail_first == params.tail_end) return -1;
  const int tail_items = params.tail_end - params.tail_first;
  // Every CTA fails exactly once; the last failure leaves the counter at zero for the next launch.
  if (source.claim == tail_items + static_cast<int>(gridDim.x) - 1) *params.tail_counter = 0;
  source.exhausted = source.claim >= tail_items;
  return source.exhausted ? -1 : params.tail_first + source.claim;
}

// Requests the queries of an item into shared memory; heads past the group are zero.
template <class Config>
__device__ __forceinline__ void RequestQuery(typename Config::Shared& shared, const DecodeParams& params, const DecodeItem& item,
                                             int buffer) {
  constexpr int kPieces = Config::kHeadTile * Config::kHeadDim / 8;
  const uint16_t* source = item.kind == PartKind::kEncoded ? params.q_codes : params.q_rows;
  const size_t first_head = (static_cast<size_t>(item.sequence) * params.kv_heads + item.head) * params.group;
  for (int piece = threadIdx.x; piece < kPieces; piece += Config::kThreads) {
    const bool valid = piece < params.group * (Config::kHeadDim / 8);
    ptx::CopyAsync16(ptx::SharedAddress(&shared.query[buffer][0][0]) + 16 * piece,
                     source + first_head * Config::kHeadDim + (valid ? 8 * piece : 0), valid);
  }
  if (threadIdx.x < Config::kHeadTile) {
    const bool valid = params.beta != nullptr && static_cast<int>(threadIdx.x) < params.group;
    const float* beta = valid ? params.beta + first_head + threadIdx.x : params.partial_stats;  // any address when not read
    ptx::CopyAsync4(ptx::SharedAddress(&shared.beta[buffer][threadIdx.x]), beta, valid);
  }
}

template <class Config, DecodeVariant kVariant = DecodeVariant::kNormal>
__global__ void __launch_bounds__(Config::kThreads, 1) DecodeAttentionKernel(const __grid_constant__ DecodeParams params) {
  constexpr int kD = Config::kHeadDim, kHeads = Config::kHeadTile / 4, kWarps = Config::kWarps;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  typename Config::Shared& shared = *reinterpret_cast<typename Config::Shared*>(shared_bytes);
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);

  const DecodeStart start = params.starts[blockIdx.x];
  PageRing<Config, kVariant> ring(shared, warp, lane);
  ItemSource& source = shared.source;  // thread 0 only
  if (threadIdx.x == 0) source = {start.next, start.end, false};
  if (start.has_first && threadIdx.x == 0) shared.items[0] = start.first;
  __syncthreads();
  const int first_ids = start.has_first ? ring.LoadFirstIds(params, start.first) : 0;
  ptx::WaitForPredecessors();
  if (start.has_first) {
    RequestQuery<Config>(shared, params, start.first, 0);
    ring.Enter(0, first_ids);
    while (ring.HasFreeStage() && !ring.ItemIsFetched()) ring.Fetch(params);
  }
  if (threadIdx.x == 0) {
    int index = 0;
    if (!start.has_first) {
      ClaimItem(params, source);
      index = NextItem(params, source);
      if (index >= 0) shared.items[0] = params.items[index];
    }
    shared.is_valid[0] = index >= 0;
    ClaimItem(params, source);
    const int second = NextItem(params, source);
    if (second >= 0) shared.items[1] = params.items[second];
    shared.is_valid[1] = second >= 0;
  }
  ptx::LaunchDependents();
  ptx::CopyAsyncWaitAll();
  __syncthreads();
  if (!start.has_first && shared.is_valid[0]) {
    RequestQuery<Config>(shared, params, shared.items[0], 0);
    ring.Enter(0, ring.LoadFirstIds(params, shared.items[0]));
    ptx::CopyAsyncWaitAll();
    __syncthreads();
  }

  WarpState<Config> state;
  bool fetches_next = false;  // the ring has turned to the next item
#pragma unroll 1
  for (int round = 0; shared.is_valid[round & 1]; ++round) {
    const int current = round & 1;
    const DecodeItem& item = shared.items[current];
    const DecodeItem& next_item = shared.items[current ^ 1];
    const bool has_next = shared.is_valid[current ^ 1];
    if (threadIdx.x == 0) ClaimItem(params, source);
    int next_ids = 0;
    if (has_next) {
      next_ids = ring.LoadFirstIds(params, next_item);
      RequestQuery<Config>(shared, params, next_item, current ^ 1);
    }
    auto refill = [&] {
      if (ring.ItemIsFetched()) {
        if (fetches_next || !has_next) return false;
        ring.Enter(current ^ 1, next_ids);
        fetches_next = true;
        if (ring.ItemIsFetched()) return false;
      }
      ring.Fetch(params);
      return true;
    };
    while (ring.HasFreeStage() && refill()) {
    }

    const int units = UnitsOfWarp<Config>(item, warp);
    const PartKind kind = item.kind;
    state.Reset();
    if (kind == PartKind::kEncoded) {
      codec::affine::device::Int2Query<kD, Config::kHeadTile> query;
      query.Load(&shared.query[current][0][0], params.kappa, lane);
      float beta[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) beta[h] = shared.beta[current][kHeads * (lane & 3) + h];
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) {
        const uint32_t block = ring.Wait();
        if constexpr (kVariant != DecodeVariant::kLoadOnly) AttendPage<Config>(block, lane, query, beta, state);
        ring.Release();
        refill();
      }
    } else {
      RowQuery<Config> query;
      query.Load(&shared.query[current][0][0], lane);
      const int rows = __ldg(params.num_rows + item.sequence) - 16 * (item.first_unit + warp);
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) {
        const int rows_left = rows - 16 * kWarps * unit;
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
    if (has_next && !fetches_next) ring.Enter(current ^ 1, next_ids);
    fetches_next = false;

    PublishWarp<Config>(shared, warp, lane, kind, state);
    ptx::CopyAsyncWaitAll();
    const DecodeItem done = item;
    __syncthreads();
    MergeWarps<Config>(shared, params, done.slot, warp, lane);
    if (threadIdx.x == 0) {
      const int index = NextItem(params, source);
      if (index >= 0) shared.items[current] = params.items[index];
      shared.is_valid[current] = index >= 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int32_t* counter = params.pair_counters + done.sequence * params.kv_heads + done.head;
      __threadfence();
      const bool is_last = atomicAdd(counter, 1) == done.pair_num_slots - 1;
      if (is_last) *counter = 0;
      shared.is_last = is_last;
      __threadfence();
    }
    __syncthreads();
    if (shared.is_last) MergeParts<Config>(params, done, warp, lane);
  }
}

}  // namespace oscar::kernels::cuda::sm90
