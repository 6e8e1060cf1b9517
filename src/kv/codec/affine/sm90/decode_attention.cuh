// Decode attention over encoded pages and BF16 rows in one launch (gpu.md 5). A persistent CTA follows
// its items; its warps own whole pages and meet only when an item ends. The code product is in
// ../tile.cuh, resources in decode_config.h, the copy ring in page_ring.cuh, the merges in
// decode_merge.cuh, the plan in kernels/cuda/decode_plan.h.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "src/kv/codec/affine/sm90/decode_config.h"
#include "src/kv/codec/affine/sm90/decode_join.cuh"
#include "src/kv/codec/affine/sm90/decode_merge.cuh"
#include "src/kv/codec/affine/sm90/decode_query.cuh"
#include "src/kv/codec/affine/sm90/page_ring.cuh"
#include "src/kv/codec/affine/sm90/warp_state.cuh"
#include "src/kv/codec/affine/tile.cuh"
#include "src/kv/kernels/cuda/ptx/launch.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::sm90 {

// Sets or raises the reference so that no weight of the page passes 2^10: by the largest score and
// the largest scale. z: scores relative to m, which are moved along; pairs: (scale, offset) of the
// values.
template <class Config>
__device__ __forceinline__ void RaiseForPage(const __half2 (&pairs)[8],
                                             float (&z)[8][Config::kHeadTile / 4],
                                             WarpState<Config>& state) {
  constexpr int kHeads = WarpState<Config>::kHeads;
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
}

// packed: weights p s_v of tokens (16 j + G, + 8) or of heads (2t, 2t + 1), times the class factor.
// l, u: the state's sums with the page added; the caller stores them when no weight was too large.
template <class Config>
__device__ __forceinline__ void WeighPage(const float (&z)[8][Config::kHeadTile / 4],
                                          const __half2 (&pairs)[8], const WarpState<Config>& state,
                                          uint32_t (&packed)[Config::kHeadTile],
                                          float (&l)[Config::kHeadTile / 4],
                                          float (&u)[Config::kHeadTile / 4]) {
  constexpr int kHeads = WarpState<Config>::kHeads;
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
    device::PackWeights<kHeads>(j, p, pairs[2 * j], pairs[2 * j + 1], &packed[j * kHeads]);
  }
}

// Adds an encoded page. The reference in `state` is relative to the constant beta, that is
// m - kappa (q . mu); page_beta, where there is one, is added to the scores of this page.
template <class Config, bool kHasPageBeta>
__device__ __forceinline__ void AttendPage(
    uint32_t block, int lane, const device::Int2Query<Config::kHeadDim, Config::kHeadTile>& query,
    const float (&page_beta)[Config::kHeadTile / 4], WarpState<Config>& state) {
  namespace tile = device;
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads, kBits = Config::kBits;
  const int row = lane >> 2;
  float z[8][kHeads];  // relative to m, log2 units
  tile::PageScores<kD, Config::kHeadTile, kBits>(block, lane, query, z);
  {
    float shift[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      shift[h] = kHasPageBeta ? page_beta[h] - state.m[h] : -state.m[h];
    __half2 pairs[8];
    tile::LoadPairs(block + tile::KeyPairsOffset(kBits, kD), row, pairs);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 pair = __half22float2(pairs[i]);
      const float unit = pair.x * query.inverse_scale;
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
        z[i][h] = fmaf(z[i][h], unit, fmaf(pair.y, query.offset_factor[h], shift[h]));
    }
  }
  __half2 pairs[8];  // of the values: (scale, offset)
  tile::LoadPairs(block + tile::ValuePairsOffset(kBits, kD), row, pairs);
  uint32_t packed[Config::kHeadTile];
  float l[kHeads], u[kHeads];
  if (state.is_first) RaiseForPage<Config>(pairs, z, state);
  WeighPage<Config>(z, pairs, state, packed, l, u);
  // A weight of 2^15 or more (2^13 where a second plane counts four times; or infinite, or not a
  // number: larger patterns still), or sums near the end of fp32: rare.
  constexpr uint32_t kRoom = kBits == 4 ? 0x10001000u : 0x08000800u;
  uint32_t largest = packed[0];
#pragma unroll
  for (int i = 1; i < 4 * kHeads; ++i) largest = __vmaxu2(largest, packed[i]);
  bool too_large = ((largest + kRoom) & 0x80008000u) != 0;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) too_large |= !(l[h] + fabsf(u[h]) < 0x1p100f);
  if (__any_sync(~0u, too_large)) {
    RaiseForPage<Config>(pairs, z, state);
    WeighPage<Config>(z, pairs, state, packed, l, u);
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
  const uint32_t value_codes = block + tile::SideBytes(kBits, kD);
  tile::AccumulateValues<kD, kBits>(value_codes, lane, weights, state.acc);
  if constexpr (tile::NumPlanes(kBits) == 2) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const __half2 four = __hmul2(*reinterpret_cast<const __half2*>(&weights[k]), __float2half2_rn(4.0f));
      weights[k] = *reinterpret_cast<const uint32_t*>(&four);
    }
    tile::AccumulateValues<kD, kBits>(value_codes + tile::SideBytes(2, kD), lane, weights, state.acc);
  }
}

// Scores of 16 BF16 rows, log2 units, not yet relative to m: z[a][h] for token G + 8 a; rows from
// rows_left on are -inf.
template <class Config>
__device__ __forceinline__ void RowScores(uint32_t keys, int lane, const RowQuery<Config>& query,
                                          float kappa, int rows_left,
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

// Adds 16 BF16 value rows. z as from RowScores. The accumulators hold 2^-24 times the sum, as for
// INT2 pages, which bf16 terms of p carry without loss.
template <class Config>
__device__ __forceinline__ void AttendValueRows(uint32_t values, int lane, int rows_left,
                                                float (&z)[2][Config::kHeadTile / 4],
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
      p[half][h] *= 1.0f / device::kValueProductScale;
    }
  }
  uint32_t first_hi[2], first_lo[2];  // B operands: tokens 0-7, 8-15
  if constexpr (kHeads == 1) {
    hi[0] = ptx::PackBf16(p[0][0], p[1][0]);
    lo[0] = ptx::PackBf16(p[0][0] - __uint_as_float(hi[0] << 16),
                          p[1][0] - __uint_as_float(hi[0] & 0xFFFF0000u));
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
    keep[half] = (2 * t + 8 * half < rows_left ? 0x0000FFFFu : 0u) |
                 (2 * t + 1 + 8 * half < rows_left ? 0xFFFF0000u : 0u);
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

// Index in params.items of the CTA's next item, or kNoItem; by thread 0.
inline constexpr int kNoItem = -1;
template <class Config>
__device__ __forceinline__ int NextItem(typename Config::Shared& shared) {
  return shared.next_item < shared.end_item ? shared.next_item++ : kNoItem;
}

// Requests the item into shared.staged; by one thread.
template <class Config>
__device__ __forceinline__ void RequestItem(typename Config::Shared& shared,
                                            const DecodeParams& params, int index) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(DecodeItem)); i += 16) {
    ptx::CopyAsync16(ptx::SharedAddress(&shared.staged) + i,
                     reinterpret_cast<const uint8_t*>(params.items + index) + i, true);
  }
}

// Counts a published part in; true for the last one of its pair, whose caller then sees all parts.
// By one thread, after a barrier behind the stores of the part.
__device__ __forceinline__ bool ArriveAtPair(const DecodeParams& params, const DecodeItem& item) {
  // Siblings share the counter of the first.
  const int first_rows = item.sibling_num_slots > 0 ? params.join.num_code_sequences : 0;
  const int sequence = item.sequence < first_rows ? item.sequence : item.sequence - first_rows;
  int32_t* counter = params.pair_counters + sequence * params.kv_heads + item.head;
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  if (before != item.pair_num_slots + item.sibling_num_slots - 1) return false;
  *counter = 0;
  return true;
}

// Enters the first item: fetches it, fills the ring, makes its query operands. Plan, page tables
// and INT2 pages are not written by launches that may still run; rows and queries are.
template <class Config, DecodeVariant kVariant>
__device__ __forceinline__ void EnterFirstItem(typename Config::Shared& shared,
                                               const DecodeParams& params,
                                               PageRing<Config, kVariant>& ring) {
  const DecodeStart& start = params.starts[blockIdx.x];
  const DecodeItem first = start.first;
  const bool has_first = start.has_first;
  if (has_first) ring.RequestFirstIds(params, first, 0);
  if (has_first && params.join.out != nullptr) PrefetchJoinMatrix<Config>(params, first);
  if (threadIdx.x == 0) {
    shared.items[0] = first;
    shared.is_valid[0] = has_first;
    shared.next_item = start.next;
    shared.end_item = start.end;
    shared.is_pair_done = 0;
    const int second = NextItem<Config>(shared);
    if (second != kNoItem) shared.items[1] = params.items[second];
    shared.is_valid[1] = second != kNoItem;
  }
  // One page per warp while the launches ahead finish; for short items the extra barrier costs
  // more. All pages at once would keep the queries waiting.
  const bool is_early = params.overlaps_start && has_first && first.num_pages >= Config::kTileWarps;
  if (is_early) {
    __syncthreads();
    ring.Enter(0);
    if (ring.IsAtPage()) ring.Fetch(params);
  }
  ptx::WaitForPredecessors();
  if (has_first) RequestQuery<Config>(shared, params, first, 0);
  __syncthreads();
  if (has_first) {
    if (!is_early) ring.Enter(0);
    while (ring.HasFreeStage() && ring.Fetch(params)) {
    }
  }
  ptx::LaunchDependents();
  ptx::CopyAsyncWaitAll();
  __syncthreads();
  QuantizeQueries<Config>(shared, params, 0, ring.warp(), ring.lane());
  __syncthreads();
}

// Requests one more stage, of this item or the next; false when neither has any left.
template <class Config, DecodeVariant kVariant>
__device__ __forceinline__ bool Refill(const typename Config::Shared& shared,
                                       const DecodeParams& params, int current,
                                       PageRing<Config, kVariant>& ring) {
  if (ring.Fetch(params)) return true;
  if (ring.item_index() != current || !shared.is_valid[current ^ 1]) return false;
  ring.Enter(current ^ 1);
  return ring.Fetch(params);
}

// Adds the warp's share of the BF16 tiles of shared.items[current].
template <class Config, DecodeVariant kVariant>
__device__ __forceinline__ void AttendTiles(const typename Config::Shared& shared,
                                            const DecodeParams& params, int current, int num_tiles,
                                            PageRing<Config, kVariant>& ring,
                                            WarpState<Config>& state) {
  constexpr bool kComputes = kVariant != DecodeVariant::kLoadOnly;
  const DecodeItem& item = shared.items[current];
  const int lane = ring.lane();
  RowQuery<Config> query;
  query.Load(shared.query[current][ring.tile() * Config::kHeadTile], lane);
  int rows_left = item.num_rows - 16 * (item.first_tile + ring.member());
#pragma unroll 1
  for (int tile = 0; tile < num_tiles; ++tile, rows_left -= 16 * Config::kTileWarps) {
    float z[2][WarpState<Config>::kHeads];
    const uint32_t keys = ring.Wait();
    if constexpr (kComputes) RowScores<Config>(keys, lane, query, params.kappa, rows_left, z);
    ring.Release();
    Refill<Config>(shared, params, current, ring);
    const uint32_t values = ring.Wait();
    if constexpr (kComputes) AttendValueRows<Config>(values, lane, rows_left, z, state);
    ring.Release();
    Refill<Config>(shared, params, current, ring);
  }
}

// The scores that the rotating mean of the keys adds to the warp's n-th page of the item, for the
// lane's heads (gpu.md 5.1).
template <class Config, DecodeVariant kVariant>
__device__ __forceinline__ const float* PageBeta(const typename Config::Shared& shared,
                                                 const DecodeParams& params, int current,
                                                 const PageRing<Config, kVariant>& ring, int n) {
  const DecodeItem& item = shared.items[current];
  const int page = item.first_page + WarpShare<Config::kTileWarps>(item, ring.member()).Page(n);
  const int64_t pair = static_cast<int64_t>(item.sequence) * params.kv_heads + item.head;
  return params.page_beta + (pair * params.code_table_stride + page) * Config::kGroupHeads +
         ring.tile() * Config::kHeadTile + Config::kHeadTile / 4 * (ring.lane() & 3);
}

// Adds the warp's share of the encoded pages of shared.items[current].
template <class Config, DecodeVariant kVariant, bool kHasPageBeta>
__device__ __forceinline__ void AttendPages(const typename Config::Shared& shared,
                                            const DecodeParams& params, int current, int num_pages,
                                            PageRing<Config, kVariant>& ring,
                                            WarpState<Config>& state) {
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  const int lane = ring.lane(), first_head = ring.tile() * Config::kHeadTile;
  device::Int2Query<kD, Config::kHeadTile> query;
  query.Load(shared.query_high[first_head], shared.query_low[first_head], kD / 4 + 4,
             shared.query_scale + 4 * ring.tile(), shared.query_sum + first_head, lane);
  const float* beta = &shared.beta[current][first_head + kHeads * (lane & 3)];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) state.m[h] -= beta[h];
#pragma unroll 1
  for (int pages = num_pages; pages > 0; --pages) {
    float page_beta[kHeads] = {};
    if constexpr (kHasPageBeta) {
      const float* source = PageBeta<Config>(shared, params, current, ring, num_pages - pages);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) page_beta[h] = __ldg(source + h);
    }
    const uint32_t block = ring.Wait();
    if constexpr (kVariant != DecodeVariant::kLoadOnly)
      AttendPage<Config, kHasPageBeta>(block, lane, query, page_beta, state);
    if (!ring.Recycle(params)) Refill<Config>(shared, params, current, ring);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) state.m[h] += beta[h];
}

template <class Config, DecodeVariant kVariant = DecodeVariant::kNormal>
__global__ void __launch_bounds__(Config::kThreads, 1)
    DecodeAttentionKernel(const __grid_constant__ DecodeParams params) {
  constexpr int kWarps = Config::kWarps;
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  typename Config::Shared& shared = *reinterpret_cast<typename Config::Shared*>(shared_bytes);
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) >> 5, 0);

  PageRing<Config, kVariant> ring(shared, warp, lane);
  EnterFirstItem<Config>(shared, params, ring);
  WarpState<Config> state;
#pragma unroll 1
  for (int current = 0; shared.is_valid[current]; current ^= 1) {
    if (threadIdx.x == 0) {
      const int index = NextItem<Config>(shared);
      shared.is_staged_valid = index != kNoItem;
      if (index != kNoItem) RequestItem<Config>(shared, params, index);
    }
    if (shared.is_valid[current ^ 1]) {
      ring.RequestFirstIds(params, shared.items[current ^ 1], current ^ 1);
      RequestQuery<Config>(shared, params, shared.items[current ^ 1], current ^ 1);
    }
    while (ring.HasFreeStage() && Refill<Config>(shared, params, current, ring)) {
    }

    state.Reset();
    const WarpShare<Config::kTileWarps> share(shared.items[current], ring.member());
    const int pages = share.num_pages;
    if (share.num_tiles > 0)
      AttendTiles<Config>(shared, params, current, share.num_tiles, ring, state);
    if (params.value_mean != nullptr) NoteRowMass<Config>(shared, warp, lane, state);
    if (pages > 0 && params.page_beta == nullptr)
      AttendPages<Config, kVariant, false>(shared, params, current, pages, ring, state);
    if (pages > 0 && params.page_beta != nullptr)
      AttendPages<Config, kVariant, true>(shared, params, current, pages, ring, state);
    if (ring.item_index() == current) ring.Enter(current ^ 1);

    const bool has_mean = params.value_mean != nullptr;
    if (ring.tile() == 0) PublishWarp<Config>(shared, warp, lane, has_mean, state);
    ptx::CopyAsyncWaitAll();
    const int slot = shared.items[current].slot;
    __syncthreads();
    // Between these barriers: this item's part, the next item's query operands, the output of the
    // pair that the item before completed, and the item after the next.
    if (threadIdx.x == 0) {
      shared.ending = shared.items[current];
      shared.items[current] = shared.staged;
      shared.is_valid[current] = shared.is_staged_valid;
    }
    MergeWarps<Config>(shared, params, slot, 0, lane);
    if constexpr (Config::kTiles == 2) {  // the second tile in the place of the first
      __syncthreads();
      if (ring.tile() == 1) PublishWarp<Config>(shared, warp, lane, has_mean, state);
      __syncthreads();
      MergeWarps<Config>(shared, params, slot, 1, lane);
    }
    if (shared.is_valid[current ^ 1])
      QuantizeQueries<Config>(shared, params, current ^ 1, kWarps - 1 - warp, lane);
    const bool is_pair_done = shared.is_pair_done;
    if (is_pair_done && params.join.out == nullptr) MergeParts<Config>(params, shared.done, warp, lane);
    __syncthreads();
    if (is_pair_done && params.join.out != nullptr) {
      JoinPair<Config>(params);
      __syncthreads();
    }
    // The others go on; they look at the answer at the end of the next item.
    if (threadIdx.x == 0) {
      shared.done = shared.ending;
      shared.is_pair_done = ArriveAtPair(params, shared.ending);
    }
  }
  __syncthreads();
  if (!shared.is_pair_done) return;
  if (params.join.out == nullptr) {
    MergeParts<Config>(params, shared.done, warp, lane);
  } else {
    JoinPair<Config>(params);
  }
}

}  // namespace oscar::affine::sm90
