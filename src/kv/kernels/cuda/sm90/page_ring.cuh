// One warp's ring of stages and the copies that keep it full, across item boundaries (gpu.md 5.3). A stage holds an INT2 page
// block, or 16 K rows or 16 V rows of a BF16 page.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/kernels/cuda/ptx/async_copy.cuh"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"
#include "src/kv/kernels/cuda/sm90/decode_config.h"

namespace oscar::kernels::cuda::sm90 {

// Units of an item that belong to this warp: first_unit + warp, + kWarps, ...
template <class Config>
__device__ __forceinline__ int UnitsOfWarp(const DecodeItem& item, int warp) {
  return (item.num_units - warp + Config::kWarps - 1) / Config::kWarps;  // num_units 0 gives 0 (towards zero)
}

template <class Config, DecodeVariant kVariant>
class PageRing {
 public:
  static constexpr int kStages = Config::kStages;

  // One lane initialises the barriers; then the warp may use the ring.
  __device__ __forceinline__ PageRing(typename Config::Shared& shared, int warp, int lane)
      : shared_(shared), warp_(warp), lane_(lane) {
    if (lane == 0) {
      for (int i = 0; i < kStages; ++i) ptx::BarrierInit(ptx::SharedAddress(&shared.barriers[warp][i]), 1);
      ptx::BarrierInitFence();
    }
    __syncwarp();
  }

  // The first page ids of the item, one per lane.
  __device__ __forceinline__ int LoadFirstIds(const DecodeParams& params, const DecodeItem& item) const {
    return LoadIds(params, item, 0);
  }

  // Turns to the item in shared.items[item_index]. Precondition: nothing of the last item is left to fetch.
  __device__ __forceinline__ void Enter(int item_index, int first_ids) {
    item_index_ = item_index;
    const DecodeItem& item = shared_.items[item_index];
    next_ = 0;
    stages_left_ = UnitsOfWarp<Config>(item, warp_) << (item.kind == PartKind::kRows ? 1 : 0);
    ids_ahead_ = first_ids;
  }

  __device__ __forceinline__ bool ItemIsFetched() const { return stages_left_ == 0; }
  __device__ __forceinline__ bool HasFreeStage() const { return in_flight_ < kStages; }

  // Precondition: a free stage and an item with something left.
  __device__ __forceinline__ void Fetch(const DecodeParams& params) {
    using namespace codec::affine::device;
    constexpr int kD = Config::kHeadDim;
    const DecodeItem& item = shared_.items[item_index_];
    const int is_rows = item.kind == PartKind::kRows ? 1 : 0;
    const int unit = next_ >> is_rows;
    if ((unit & 31) == 0 && (next_ & is_rows) == 0) {
      ids_ = ids_ahead_;
      ids_ahead_ = LoadIds(params, item, (unit >> 5) + 1);
    }
    const int id = __shfl_sync(~0u, ids_, unit & 31);
    const bool skip = kVariant == DecodeVariant::kComputeOnly && consumed_ + in_flight_ >= kStages;
    if (lane_ == 0 && !skip) {
      const uint32_t stage = (consumed_ + in_flight_) % kStages;
      const uint32_t block = static_cast<uint32_t>(id) * params.kv_heads + item.head;
      const uint32_t barrier = ptx::SharedAddress(&shared_.barriers[warp_][stage]);
      const uint32_t target = ptx::SharedAddress(shared_.ring[warp_][stage]);
      const uint8_t* source = params.code_pool + static_cast<uint64_t>(block) * BlockBytes(kD);
      uint32_t bytes = BlockBytes(kD);
      if (is_rows) {
        bytes = Bf16TileBytes(kD);
        source = params.row_pool + static_cast<uint64_t>(block) * Bf16BlockBytes(kD) +
                 ((item.first_unit + warp_ + unit * Config::kWarps) & 3) * Bf16TileBytes(kD) + (next_ & 1) * (128 * kD);
      }
      ptx::BarrierArriveExpectBytes(barrier, bytes);
      ptx::BulkCopy(target, source, bytes, barrier, ptx::EvictFirstPolicy());
    }
    ++next_;
    --stages_left_;
    ++in_flight_;
  }

  // Waits for the oldest stage and returns its address.
  __device__ __forceinline__ uint32_t Wait() const {
    const uint32_t stage = consumed_ % kStages;
    if (kVariant != DecodeVariant::kComputeOnly || consumed_ < kStages) {
      ptx::BarrierWait(ptx::SharedAddress(&shared_.barriers[warp_][stage]), (consumed_ / kStages) & 1);
    }
    return ptx::SharedAddress(shared_.ring[warp_][stage]);
  }
  // The oldest stage is free. Every lane has read what it needs.
  __device__ __forceinline__ void Release() {
    ++consumed_;
    --in_flight_;
    __syncwarp();
  }

 private:
  // Page id of the warp's unit 32 batch + lane; a BF16 page has 4 units.
  __device__ __forceinline__ int LoadIds(const DecodeParams& params, const DecodeItem& item, int batch) const {
    const int unit = 32 * batch + lane_;
    if (unit >= UnitsOfWarp<Config>(item, warp_)) return 0;
    const int position = item.first_unit + warp_ + unit * Config::kWarps;
    return item.kind == PartKind::kRows
               ? __ldg(params.row_table + static_cast<size_t>(item.sequence) * params.row_table_stride + (position >> 2))
               : __ldg(params.code_table + static_cast<size_t>(item.sequence) * params.code_table_stride + position);
  }

  typename Config::Shared& shared_;
  const int warp_, lane_;
  uint32_t consumed_ = 0;  // stages so far
  int in_flight_ = 0;      // requested and not released
  // The item that is being fetched, in shared.items[item_index_].
  int item_index_ = 0;
  int next_ = 0, stages_left_ = 0;
  int ids_ = 0, ids_ahead_ = 0;
};

}  // namespace oscar::kernels::cuda::sm90
