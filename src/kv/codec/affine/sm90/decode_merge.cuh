// Joins the parts of a decode attention result (gpu.md 5.8): warps of a CTA to the partial record
// of an item, records of a (sequence, KV head) to its output rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kv/codec/affine/sm90/decode_config.h"
#include "src/kv/codec/affine/sm90/warp_state.cuh"
#include "src/kv/codec/affine/tile.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::sm90 {

inline constexpr float kEmptyReference = -1e30f;  // m of a part without tokens; its l is 0

// Sum over the 8 rows G: afterwards every lane has the total of its heads.
__device__ __forceinline__ float SumOverRows(float x) {
#pragma unroll
  for (int mask = 4; mask <= 16; mask <<= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// Notes the mass of the BF16 rows, before the first page: the mean of the values counts for the
// INT2 part only.
template <class Config>
__device__ __forceinline__ void NoteRowMass(typename Config::Shared& shared, int warp, int lane,
                                            const WarpState<Config>& state) {
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
__device__ __forceinline__ void PublishWarp(typename Config::Shared& shared, int warp, int lane,
                                            bool has_row_mass, WarpState<Config>& state) {
  constexpr int kD = Config::kHeadDim, kHeads = WarpState<Config>::kHeads;
  const int row = lane >> 2, t = lane & 3;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float l = SumOverRows(state.l[h]), u = SumOverRows(state.u[h]);
    constexpr float kScale = device::kValueProductScale;
    const int head = kHeads * t + h;
    if (row == 0) {
      const float* rows = shared.row_stats[warp][head];
      const float code_l =
          has_row_mass && rows[1] > 0.0f ? l - rows[1] * ptx::Exp2(rows[0] - state.m[h]) : l;
      *reinterpret_cast<float4*>(shared.stats[warp][head]) =
          make_float4(state.is_first ? kEmptyReference : state.m[h], l, code_l, 0.0f);
    }
    float* out = shared.merge[warp % Config::kTileWarps][head];
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float value = kHeads == 1 ? state.acc[i][2 * half] + state.acc[i][2 * half + 1]
                                        : state.acc[i][2 * half + h];
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

// Joins the warps of an item into its partial record, for one head tile. A warp takes segments of
// 32 kMergeWidth dimensions of one head.
template <class Config>
__device__ __forceinline__ void MergeWarps(const typename Config::Shared& shared,
                                           const DecodeParams& params, int slot, int tile,
                                           int lane) {
  constexpr int kD = Config::kHeadDim, kHeadTile = Config::kHeadTile, kWarps = Config::kTileWarps,
                kWidth = kMergeWidth<Config>;
  const int warp = static_cast<int>(threadIdx.x) / 32, num_heads = params.group - tile * kHeadTile;
  constexpr int kSegments = kD / (32 * kWidth);
  using Group = FloatGroup<kWidth>;
#pragma unroll 1
  for (int segment = warp; segment < min(num_heads, kHeadTile) * kSegments;
       segment += Config::kWarps) {
    const int head = segment / kSegments;
    const float4 stats =
        *reinterpret_cast<const float4*>(shared.stats[tile * kWarps + lane % kWarps][head]);
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
    const size_t record = static_cast<size_t>(slot) * Config::kGroupHeads + tile * kHeadTile + head;
    *reinterpret_cast<Group*>(params.partials + record * kD + dim) = sum;
    if (segment % kSegments == 0) {
      // Both halves of the warp hold the same lanes: one sums l, the other its INT2 part.
      const float mass = SumOverLanes<kWarps>(e * (lane < 16 ? stats.y : stats.z)),
                  code_mass = __shfl_sync(~0u, mass, 16);
      if (lane == 0)
        reinterpret_cast<float4*>(params.partial_stats)[record] =
            make_float4(m, mass, code_mass, 0.0f);
    }
  }
}

// The partial records of a (sequence, KV head), slots [first_slot, + num_slots), joined: of one head, kWidth dimensions from `dim` on.
template <int kWidth>
struct JoinedRecords {
  FloatGroup<kWidth> sum = {};  // not normalised
  float m = kEmptyReference, l = 0.0f, code_l = 0.0f;
};
template <class Config, int kWidth>
__device__ __forceinline__ JoinedRecords<kWidth> JoinRecords(const DecodeParams& params, int first_slot, int num_slots, int head,
                                                             int dim, int lane) {
  constexpr int kD = Config::kHeadDim, kHeadTile = Config::kGroupHeads;
  constexpr int kAtOnce = 16;  // loads in flight
  using Group = FloatGroup<kWidth>;
  const float4* stats = reinterpret_cast<const float4*>(params.partial_stats) + static_cast<size_t>(first_slot) * kHeadTile;
  const float* parts = params.partials + static_cast<size_t>(first_slot) * kHeadTile * kD;
  JoinedRecords<kWidth> joined;
#pragma unroll 1
  for (int first = 0; first < num_slots; first += kAtOnce) {
    const int count = min(kAtOnce, num_slots - first), own = lane % kAtOnce;
    const float4 record = own < count ? __ldcg(stats + (first + own) * kHeadTile + head)
                                      : make_float4(kEmptyReference, 0.0f, 0.0f, 0.0f);
    const float* row = parts + (static_cast<size_t>(first) * kHeadTile + head) * kD + dim;
    Group part[kAtOnce];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      part[s] = {};
      if (s >= count) continue;
      const float* source = row + s * (kHeadTile * kD);
      if constexpr (kWidth == 1) part[s].x[0] = __ldcg(source);
      if constexpr (kWidth == 2)
        *reinterpret_cast<float2*>(&part[s]) = __ldcg(reinterpret_cast<const float2*>(source));
      if constexpr (kWidth == 4)
        *reinterpret_cast<float4*>(&part[s]) = __ldcg(reinterpret_cast<const float4*>(source));
    }
    const float new_m = fmaxf(joined.m, MaxOverLanes<kAtOnce>(record.x));
    const float old = ptx::Exp2(joined.m - new_m), e = own < count ? ptx::Exp2(record.x - new_m) : 0.0f;
    joined.m = new_m;
    joined.l = fmaf(joined.l, old, SumOverLanes<kAtOnce>(e * record.y));
    if (params.value_mean != nullptr)
      joined.code_l = fmaf(joined.code_l, old, SumOverLanes<kAtOnce>(e * record.z));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) joined.sum.x[i] *= old;
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      const float weight = __shfl_sync(~0u, e, s);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) joined.sum.x[i] = fmaf(weight, part[s].x[i], joined.sum.x[i]);
    }
  }
  return joined;
}

// Joins the partial records of a (sequence, KV head) and writes the output rows; by the CTA that
// arrived last.
template <class Config>
__device__ __forceinline__ void MergeParts(const DecodeParams& params, const DecodeItem& item,
                                           int warp, int lane) {
  constexpr int kD = Config::kHeadDim, kWidth = kMergeWidth<Config>;
  constexpr int kSegments = kD / (32 * kWidth);
#pragma unroll 1
  for (int segment = warp; segment < params.group * kSegments; segment += Config::kWarps) {
    const int head = segment / kSegments;
    const int dim = (segment % kSegments * 32 + lane) * kWidth;
    JoinedRecords<kWidth> joined =
        JoinRecords<Config, kWidth>(params, item.pair_first_slot, item.pair_num_slots, head, dim, lane);
    const float l = joined.l;
    const size_t index =
        ((static_cast<size_t>(item.sequence) * params.kv_heads + item.head) * params.group + head) *
            kD +
        dim;
    if (params.out_lse != nullptr && segment % kSegments == 0 && lane == 0) {
      params.out_lse[index / kD] =
          l > 0.0f ? (joined.m + ptx::Log2(l)) * 0.6931471805599453f : -__builtin_huge_valf();
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float& sum = joined.sum.x[i];
      if (params.value_mean != nullptr)
        sum = fmaf(joined.code_l, params.value_mean[item.head * kD + dim + i], sum);
      const float result = l > 0.0f ? sum / l : (l == 0.0f ? 0.0f : l);
      params.out[index + i] = static_cast<uint16_t>(ptx::PackBf16(result, 0.0f));
      if (params.out_f32 != nullptr) params.out_f32[index + i] = result;
    }
  }
}

}  // namespace oscar::affine::sm90
