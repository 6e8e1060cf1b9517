// One warp's ring of stages and the copies that keep it full, across item boundaries (gpu.md 5.3).
// A stage holds an encoded page block, or the 16 K rows or 16 V rows of a BF16 tile. Also here: which
// units of an item belong to which warp.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/sm90/decode_config.h"
#include "src/kv/kernels/cuda/ptx/async_copy.cuh"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"

namespace oscar::affine::sm90 {

namespace ptx = kernels::cuda::ptx;

// The share of a warp: tiles warp, warp + W, ... of the item, then pages. A tile weighs two pages,
// so the warps without a tile in the last round of tiles take two pages more: pages 0 .. 2 (W -
// rest) - 1 go to warps rest .. W - 1, two each.
template <int kWarps>
struct WarpShare {
  int num_tiles, num_pages;
  int early_pages;              // of those two, how many
  int early_first, early_step;  // page index of the first of them, distance of the second
  int late_first;               // page index of the first later page; the others are W apart

  __device__ __forceinline__ WarpShare(const DecodeItem& item, int warp) {
    const int rest = item.num_tiles % kWarps;
    num_tiles = item.num_tiles / kWarps + (warp < rest ? 1 : 0);
    early_first = warp - rest;
    early_step = kWarps - rest;
    const bool has_early = rest != 0 && warp >= rest;
    early_pages = !has_early                                  ? 0
                  : early_first + early_step < item.num_pages ? 2
                  : early_first < item.num_pages              ? 1
                                                              : 0;
    late_first = (rest != 0 ? 2 * early_step : 0) + warp;
    num_pages =
        early_pages +
        (item.num_pages > late_first ? (item.num_pages - late_first + kWarps - 1) / kWarps : 0);
  }
  // Page index, inside the item, of the warp's n-th page.
  __device__ __forceinline__ int Page(int n) const {
    return n < early_pages ? early_first + n * early_step : late_first + (n - early_pages) * kWarps;
  }
};

// The units of a warp in an item are its tiles, then its pages; ids are asked for in batches of 32
// units, one batch ahead.
template <class Config, DecodeVariant kVariant>
class PageRing {
 public:
  static constexpr int kStages = Config::kStages, kTileWarps = Config::kTileWarps,
                       kD = Config::kHeadDim;

  // One lane initialises the barriers; then the warp may use the ring.
  __device__ __forceinline__ PageRing(typename Config::Shared& shared, int warp, int lane)
      : shared_(shared), warp_(warp), lane_(lane) {
#if OSCAR_CUDA_BULK_COPY
    if (lane == 0) {
      for (int i = 0; i < kStages; ++i) ptx::BarrierInit(Barrier(i), 1);
      ptx::BarrierInitFence();
    }
#endif
    __syncwarp();
  }

  // Asks for the page ids of the warp's first units of the item, which is or will be
  // shared.items[item_index].
  __device__ __forceinline__ void RequestFirstIds(const DecodeParams& params,
                                                  const DecodeItem& item, int item_index) const {
    RequestIds(params, item, WarpShare<kTileWarps>(item, member()), item_index, 0);
  }

  // Turns to shared.items[item_index]. Preconditions: its first ids are requested, nothing of the
  // last item is left to fetch.
  __device__ __forceinline__ void Enter(int item_index) {
    item_index_ = item_index;
    unit_ = fast_end_ = 0;
    in_tile_ = 0;
  }
  __device__ __forceinline__ int item_index() const { return item_index_; }
  __device__ __forceinline__ int warp() const { return warp_; }
  // The warp's head tile, and its number among the warps of that tile.
  __device__ __forceinline__ int tile() const { return warp_ / kTileWarps; }
  __device__ __forceinline__ int member() const { return warp_ % kTileWarps; }
  __device__ __forceinline__ int lane() const { return lane_; }
  __device__ __forceinline__ bool HasFreeStage() const { return in_flight_ < kStages; }
  // Whether the next unit is an INT2 page.
  __device__ __forceinline__ bool IsAtPage() const {
    return unit_ >= WarpShare<kTileWarps>(shared_.items[item_index_], member()).num_tiles;
  }

  // Requests the next stage of the item that is being fetched; false when it has none left.
  // Precondition: a free stage.
  __device__ __forceinline__ bool Fetch(const DecodeParams& params) {
    namespace layout = device;
    if (unit_ == fast_end_) {
      const DecodeItem& item = shared_.items[item_index_];
      const WarpShare<kTileWarps> share(item, member());
      if (unit_ == share.num_tiles + share.num_pages) return false;
      if ((unit_ & 31) == 0 && in_tile_ == 0) TurnBatch(params, item, share);
      if (unit_ < share.num_tiles) {
        const uint8_t* source =
            params.row_pool + static_cast<uint64_t>(ReadId()) * layout::Bf16BlockBytes(kD) +
            ((item.first_tile + member() + unit_ * kTileWarps) & 3) * layout::Bf16TileBytes(kD) +
            in_tile_ * (128 * kD);
        ++in_flight_;
        Copy(source, layout::Bf16TileBytes(kD));
        unit_ += in_tile_;
        fast_end_ = unit_;
        in_tile_ ^= 1;
        return true;
      }
      fast_end_ = min(share.num_tiles + share.num_pages, (unit_ & ~31) + 32);
    }
    ++in_flight_;
    FetchPage(params);
    return true;
  }
  // Fast form for the loop over pages: frees the oldest stage, and when page ids are ready,
  // requests the next page into it at once. Returns whether it did; if not, the caller goes on with
  // Fetch.
  __device__ __forceinline__ bool Recycle(const DecodeParams& params) {
    __syncwarp();
    ++consumed_;
    if (unit_ == fast_end_) {
      --in_flight_;
      return false;
    }
    FetchPage(params);
    return true;
  }

  // Waits for the oldest stage and returns its address.
  __device__ __forceinline__ uint32_t Wait() const {
    const uint32_t stage = consumed_ % kStages;
    if (kVariant != DecodeVariant::kComputeOnly || consumed_ < kStages) {
#if OSCAR_CUDA_BULK_COPY
      ptx::BarrierWait(Barrier(stage), (consumed_ / kStages) & 1);
#else
      // Every stage is a group of copies of each lane; newer groups may go on.
      static_assert(kStages <= 4);
      switch (in_flight_) {
        case 4:
          ptx::CopyAsyncWait<3>();
          break;
        case 3:
          ptx::CopyAsyncWait<2>();
          break;
        case 2:
          ptx::CopyAsyncWait<1>();
          break;
        default:
          ptx::CopyAsyncWait<0>();
      }
      __syncwarp();
#endif
    }
    return Stage(stage);
  }
  // The oldest stage is free. Every lane has read what it needs.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    ++consumed_;
    --in_flight_;
  }

 private:
  __device__ __forceinline__ uint32_t Stage(uint32_t stage) const {
    return ptx::SharedAddress(shared_.ring[warp_][0]) + stage * Config::kStageBytes;
  }
  __device__ __forceinline__ uint32_t Barrier(uint32_t stage) const {
    return ptx::SharedAddress(&shared_.barriers[warp_][0]) + stage * 8;
  }
  __device__ __forceinline__ uint32_t ReadId() const {
    return shared_.ids[warp_][item_index_][unit_ & 63];
  }

  __device__ __forceinline__ void Copy(const uint8_t* source, uint32_t bytes) const {
    const uint32_t index = consumed_ + in_flight_ - 1;
    if (kVariant == DecodeVariant::kComputeOnly && index >= kStages) return;
    const uint32_t stage = index % kStages;
#if OSCAR_CUDA_BULK_COPY
    if (lane_ != 0) return;
    ptx::BarrierArriveExpectBytes(Barrier(stage), bytes);
    ptx::BulkCopy(Stage(stage), source, bytes, Barrier(stage), ptx::kEvictFirst);
#else
    for (uint32_t i = 16 * lane_; i < bytes; i += 16 * 32)
      ptx::CopyAsync16(Stage(stage) + i, source + i, true);
    ptx::CopyAsyncCommit();
#endif
  }
  __device__ __forceinline__ void FetchPage(const DecodeParams& params) {
    constexpr uint32_t kBytes = device::BlockBytes(Config::kBits, kD);
    Copy(params.code_pool + static_cast<uint64_t>(ReadId()) * kBytes, kBytes);
    ++unit_;
  }

  // The batch that begins at unit_ becomes readable, as block indices (page id * heads + head); the
  // next one is asked for.
  __device__ __forceinline__ void TurnBatch(const DecodeParams& params, const DecodeItem& item,
                                            const WarpShare<kTileWarps>& share) {
    ptx::CopyAsyncWaitAll();
    uint32_t& id = shared_.ids[warp_][item_index_][(unit_ & 32) + lane_];
    id = id * params.kv_heads + item.head;
    __syncwarp();
    RequestIds(params, item, share, item_index_, unit_ + 32);
  }
  // A BF16 page has 4 tiles.
  __device__ __forceinline__ void RequestIds(const DecodeParams& params, const DecodeItem& item,
                                             const WarpShare<kTileWarps>& share, int item_index,
                                             int first) const {
    const int n = first + lane_;
    if (n >= share.num_tiles + share.num_pages) return;
    const int32_t* entry = n < share.num_tiles
                               ? params.row_table + item.sequence * params.row_table_stride +
                                     ((item.first_tile + member() + n * kTileWarps) >> 2)
                               : params.code_table + item.sequence * params.code_table_stride +
                                     item.first_page + share.Page(n - share.num_tiles);
    ptx::CopyAsync4(ptx::SharedAddress(&shared_.ids[warp_][item_index][n & 63]), entry, true);
  }

  typename Config::Shared& shared_;
  const int warp_, lane_;
  uint32_t consumed_ = 0;  // stages so far
  int in_flight_ = 0;      // requested and not released
  // The item that is being fetched, in shared.items[item_index_].
  int item_index_ = 0;
  int unit_ = 0, fast_end_ = 0;  // next unit; up to fast_end_ units are pages with ids ready
  int in_tile_ = 0;              // 1: the K rows of tile unit_ are requested, its V rows not
};

}  // namespace oscar::affine::sm90
