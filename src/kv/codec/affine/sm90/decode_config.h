// Resources of the Hopper decode attention kernel: constants, shared-memory plan, checks. The loop
// is decode_attention.cuh.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/kernels/cuda/decode_params.h"

namespace oscar::affine::sm90 {

using kernels::cuda::DecodeItem;
using kernels::cuda::DecodeParams;
using kernels::cuda::DecodeStart;

// kLoadOnly and kComputeOnly are for `oscar bench attend`: they tell which limit holds. Their
// results mean nothing.
enum class DecodeVariant { kNormal, kLoadOnly, kComputeOnly };

// kBits: of a code. kHeads: query heads of a KV head that the kernel takes at most. Of more than 8, half of the warps
// visit the pages for the first 8 heads and half for the others; a page then comes from memory once
// and from L2 once more.
template <int D, int kHeads, int kCodeBits = 2>
struct DecodeConfig {
  static_assert(device::IsHeadDim(D) && (kHeads == 4 || kHeads == 8 || kHeads == 16));
  static_assert(device::IsBits(kCodeBits));
  static constexpr int kBits = kCodeBits;
  static constexpr int kHeadDim = D;
  static constexpr int kGroupHeads = kHeads;
  static constexpr int kHeadTile = kHeads < 8 ? kHeads : 8;  // of one visit
  static constexpr int kTiles = kHeads / kHeadTile;
#ifdef OSCAR_CUDA_FORCE_PORTABLE
  static constexpr int kWarps = D * (kBits == 4 ? 2 : 1) <= 128 ? 8 : 4;  // for the shared memory of sm_80
#else
  // d >= 192: 48..64 accumulators per lane; 4 bits: pages of twice the size, and registers for two planes.
  static constexpr int kWarps = (D <= 128 ? 16 : 8) / (kBits == 4 ? 2 : 1);
#endif
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTileWarps = kWarps / kTiles;  // that share the units of an item
  // Records of a head tile that shared memory holds: those of its warps, and for the join two of each tile.
  static constexpr int kMergeRecords = kTileWarps > 2 * kTiles ? kTileWarps : 2 * kTiles;
  // Of one warp's ring; 2 x 4,608 B x 16 = 144 KB at d = 128.
  static constexpr int kStages = D == 64 && kBits != 4 ? 4 : (D == 192 ? 3 : 2);
  static constexpr int kPageBytes = device::BlockBytes(kBits, D);
  static constexpr int kStageBytes = kPageBytes > device::Bf16TileBytes(D) ? kPageBytes : device::Bf16TileBytes(D);
  static_assert(kStageBytes % 128 == 0);

  struct Shared {
    alignas(128) uint8_t ring[kWarps][kStages][kStageBytes];
    // Head rows rotated by 8 (head / heads per lane) words: no bank conflicts.
    alignas(16) float merge[kMergeRecords][kHeadTile][D];  // of one tile after the other
    alignas(16) float stats[kWarps][kHeadTile][4];      // m, l, INT2 part of l, unused
    float row_stats[kWarps][kHeadTile]
                   [2];  // m, l after the BF16 tiles; only where values have a mean
    // Of the current and the next item. Rows padded so that the 8 rows of an operand load use
    // different banks.
    alignas(16) uint16_t query[2][kGroupHeads][D + 8];  // bf16
    uint32_t query_high[kGroupHeads][D / 4 + 4];        // int8, four dimensions a word
    uint32_t query_low[kGroupHeads][D / 4 + 4];
    float query_scale[4 * kTiles],
        query_sum[kGroupHeads];  // kappa / S of a lane's heads, kappa * Sum(q')
    float beta[2][kGroupHeads];
    alignas(16) DecodeItem items[2];
    int32_t is_valid[2];
    uint32_t ids[kWarps][2][64];    // by item: page ids of the warp's units, two batches of 32
    alignas(16) DecodeItem staged;  // the item after the next, and whether there is one
    int32_t is_staged_valid;
    DecodeItem ending;              // the item whose warps are being merged
    DecodeItem done;  // the item before, and whether it completed its pair
    int32_t is_pair_done;
    int32_t next_item, end_item;  // of the list, what is not staged yet
    alignas(8) uint64_t barriers[kWarps][kStages];
  };
  static_assert(sizeof(Shared) <= 232'448);
};

}  // namespace oscar::affine::sm90
