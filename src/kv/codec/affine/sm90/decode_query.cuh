// Queries of an item on their way to operands: bf16 rows in shared memory, for BF16 rows as they
// are, for INT2 pages as int8 pairs (gpu.md 5.4).
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/sm90/decode_config.h"
#include "src/kv/codec/affine/tile.cuh"
#include "src/kv/kernels/cuda/ptx/async_copy.cuh"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"

namespace oscar::affine::sm90 {

namespace ptx = kernels::cuda::ptx;

// Query operand for BF16 rows, of the heads of a tile: head tile 4 has every head in two columns,
// for the two terms of p.
template <class Config>
struct RowQuery {
  uint32_t b[Config::kHeadDim / 16][2];
  __device__ __forceinline__ void Load(const uint16_t* query, int lane) {
    const int row = lane >> 2, t = lane & 3;
    const uint16_t* q =
        query + (Config::kHeadTile == 4 ? row >> 1 : row) * (Config::kHeadDim + 8) + 2 * t;
#pragma unroll
    for (int k = 0; k < Config::kHeadDim / 16; ++k) {
      b[k][0] = *reinterpret_cast<const uint32_t*>(q + 16 * k);
      b[k][1] = *reinterpret_cast<const uint32_t*>(q + 16 * k + 8);
    }
  }
};

// Requests the queries of an item into shared memory; heads past the group are zero.
template <class Config>
__device__ __forceinline__ void RequestQuery(typename Config::Shared& shared,
                                             const DecodeParams& params, const DecodeItem& item,
                                             int buffer) {
  constexpr int kPieces = Config::kHeadDim / 8;  // of a row
  const size_t first_head =
      (static_cast<size_t>(item.sequence) * params.kv_heads + item.head) * params.group;
  for (int piece = threadIdx.x; piece < Config::kGroupHeads * kPieces; piece += Config::kThreads) {
    const int head = piece / kPieces, part = piece % kPieces;
    const bool valid = head < params.group;
    ptx::CopyAsync16(
        ptx::SharedAddress(&shared.query[buffer][head][8 * part]),
        params.queries + (first_head + (valid ? head : 0)) * Config::kHeadDim + 8 * part, valid);
  }
  if (threadIdx.x < Config::kGroupHeads) {
    const bool valid = params.beta != nullptr && static_cast<int>(threadIdx.x) < params.group;
    const float* beta = valid ? params.beta + first_head + threadIdx.x
                              : params.partial_stats;  // any address when not read
    ptx::CopyAsync4(ptx::SharedAddress(&shared.beta[buffer][threadIdx.x]), beta, valid);
  }
}

// One warp per pair of heads, which share a scale because a lane computes both. After the barrier
// that follows RequestQuery's wait; a barrier must follow.
template <class Config>
__device__ __forceinline__ void QuantizeQueries(typename Config::Shared& shared,
                                                const DecodeParams& params, int buffer, int warp,
                                                int lane) {
  constexpr int kHeads = Config::kHeadTile / 4;
#pragma unroll 1
  for (int lanes = warp; lanes < 4 * Config::kTiles; lanes += Config::kWarps) {
    device::QuantizeQuery<Config::kHeadDim, kHeads>(
        shared.query[buffer][kHeads * lanes], Config::kHeadDim + 8, params.kappa, lane,
        {shared.query_high[kHeads * lanes], shared.query_low[kHeads * lanes],
         Config::kHeadDim / 4 + 4, &shared.query_scale[lanes], &shared.query_sum[kHeads * lanes]});
  }
}

}  // namespace oscar::affine::sm90
