// Demotion of BF16 pages to 2-bit pages, fused: one CTA per side of a (page, KV head, layer) reads
// its 64 rows once, centres and transforms them where the rows are raw, and writes its half of the
// block (gpu.md 7.2). The encoder is encode.cuh, the byte order pack.cuh.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/encode.cuh"
#include "src/kv/codec/affine/pack.cuh"
#include "src/kv/codec/affine/transform.cuh"
#include "src/kv/kernels/cuda/demote_params.h"
#include "src/kv/kernels/cuda/ptx/async_copy.cuh"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"
#include "src/kv/kernels/cuda/ptx/launch.cuh"

namespace oscar::affine {

using kernels::cuda::DemoteJob;
using kernels::cuda::DemotePagesParams;
using kernels::cuda::DemoteSide;

// The first four warps encode, 16 tokens each; a transform also takes the others.
inline constexpr int kEncodeWarps = 4;
template <int D, bool kTransforms>
inline constexpr int kDemoteThreads =
    kTransforms ? device::kTransformThreads<D> : 32 * kEncodeWarps;

// Where a CTA is in its launch.
struct DemotePlace {
  int layer, head, job, side;
};

template <int D>
struct DemoteShared {
  alignas(
      128) uint8_t rows[device::kTokens * 2 * D];  // 16-byte piece i of a row at i ^ (token & 7)
  alignas(16) float4
      value_grids[8][4];  // [k][t]: (shift, quarter reciprocal) of tokens 8 k + 2 t, + 1
  alignas(4) uint16_t thresholds[device::kTokens];
  int32_t needs_clip;  // some value row does
  alignas(8) uint64_t barrier;
};

// Reads the 64 rows of the side into shared memory.
template <int D, int kThreads>
__device__ __forceinline__ void ReadRows(const uint8_t* source, DemoteShared<D>& shared) {
  constexpr int kBytes = device::kTokens * 2 * D;
#if OSCAR_CUDA_BULK_COPY
  const uint32_t barrier = device::ptx::SharedAddress(&shared.barrier);
  if (threadIdx.x == 0) {
    device::ptx::BarrierInit(barrier, 1);
    device::ptx::BarrierInitFence();
    device::ptx::BarrierArriveExpectBytes(barrier, kBytes);
    device::ptx::BulkCopy(device::ptx::SharedAddress(shared.rows), source, kBytes, barrier,
                          device::ptx::kEvictFirst);
    shared.needs_clip = 0;
  }
  __syncthreads();
  device::ptx::BarrierWait(barrier, 0);
#else
  for (int i = threadIdx.x; i < kBytes / 16; i += kThreads) {
    device::ptx::CopyAsync16(device::ptx::SharedAddress(shared.rows) + 16 * i, source + 16 * i,
                             true);
  }
  if (threadIdx.x == 0) shared.needs_clip = 0;
  device::ptx::CopyAsyncWaitAll();
  __syncthreads();
#endif
}

// Grids of tokens 16 warp + G + 8 a for both a. The values do not stay in registers, where their
// magnitudes need the room.
template <int D>
__device__ __forceinline__ void MakeGrids(const DemotePagesParams& params, const DemotePlace& place,
                                          int warp, int lane, uint32_t first_row,
                                          device::DeviceGrid (&grids)[2]) {
  const int row = lane >> 2, t = lane & 3;
  const auto load = [&](int a, uint32_t(&values)[D / 8]) {
    device::LoadRowValues<D>(first_row + a * 16 * D, row, t, values);
  };
  device::MinMaxGrids<D / 8>(load, params.sides[place.side].clip_index, grids);
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    if (!grids[a].is_encodable && t == 0) {
      kernels::cuda::ReportNonFinite(
          params.status,
          {1, params.first_layer + place.layer, place.head, place.job, 16 * warp + 8 * a + row, place.side, {}});
    }
  }
}

// The pairs of a lane's two tokens are neighbours in the block.
__device__ __forceinline__ void StorePairs(const device::DeviceGrid (&grids)[2], int warp, int lane,
                                           uint8_t* pairs) {
  if ((lane & 3) != 0) return;
  uint2 both;
  both.x = *reinterpret_cast<const uint32_t*>(&grids[0].pair);
  both.y = *reinterpret_cast<const uint32_t*>(&grids[1].pair);
  *reinterpret_cast<uint2*>(pairs + 4 * (8 * (lane >> 2) + 2 * warp)) = both;
}

template <int D>
__device__ __forceinline__ void EncodeKeys(const device::DeviceGrid (&grids)[2], uint32_t first_row,
                                           int warp, int lane, uint8_t* block) {
  const int row = lane >> 2, t = lane & 3;
  const bool needs_clip = __any_sync(~0u, grids[0].needs_clip || grids[1].needs_clip);
  uint32_t words[2][D / 64] = {};
#pragma unroll 1
  for (int a = 0; a < 2; ++a) {
    const device::DeviceGrid grid = a == 0 ? grids[0] : grids[1];
    uint32_t values[D / 8];
    device::LoadRowValues<D>(first_row + a * 16 * D, row, t, values);
    if (needs_clip) {
#pragma unroll
      for (int i = 0; i < D / 8; ++i)
        values[i] = device::ClipPair(values[i], device::InBothHalves(grid.threshold));
    }
#pragma unroll
    for (int h = 0; h < D / 64; ++h) {
      words[0][h] = words[1][h];
      words[1][h] = device::KeyWord<D>(values, h, row, grid);
    }
  }
#pragma unroll
  for (int s = 0; s < D / 128; ++s) {
    *reinterpret_cast<uint4*>(block + s * 2048 + warp * 512 + lane * 16) =
        make_uint4(words[0][2 * s], words[0][2 * s + 1], words[1][2 * s], words[1][2 * s + 1]);
  }
  if constexpr (D % 128 != 0) {
    *reinterpret_cast<uint2*>(block + D / 128 * 2048 + (warp >> 1) * 512 + lane * 16 +
                              8 * (warp & 1)) =
        make_uint2(words[0][D / 64 - 1], words[1][D / 64 - 1]);
  }
  StorePairs(grids, warp, lane, block + device::KeyPairsOffset(D));
}

// Leaves the grids of a warp's tokens for all warps.
template <int D>
__device__ __forceinline__ void ShareValueGrids(const device::DeviceGrid (&grids)[2], int warp,
                                                int lane, DemoteShared<D>& shared) {
  const int row = lane >> 2;
  if ((lane & 3) != 0) return;
#pragma unroll
  for (int a = 0; a < 2; ++a) {
    reinterpret_cast<float2*>(&shared.value_grids[2 * warp + a][row >> 1])[row & 1] =
        make_float2(grids[a].shift, grids[a].quarter_reciprocal);
    shared.thresholds[16 * warp + 8 * a + row] = static_cast<uint16_t>(grids[a].threshold);
  }
  if (grids[0].needs_clip || grids[1].needs_clip) shared.needs_clip = 1;
}

template <int D, int kThreads>
__device__ __forceinline__ void EncodeValues(int warp, int lane, const DemoteShared<D>& shared,
                                             uint8_t* block) {
  device::ValueGrids grids;
#pragma unroll
  for (int k = 0; k < 8; ++k) grids.of_pair[k] = shared.value_grids[k][lane & 3];
  const uint16_t* thresholds = shared.needs_clip ? shared.thresholds : nullptr;
  uint32_t words[4] = {};
#pragma unroll 1
  for (int n = 0; n < 4 * ((D / 32 + kThreads / 32 - 1) / (kThreads / 32)); ++n) {
    const int u = warp + (n >> 2) * (kThreads / 32);
    if (u >= D / 32) return;
#pragma unroll
    for (int w = 0; w < 3; ++w) words[w] = words[w + 1];
    words[3] = device::ValueWord<D>(device::ptx::SharedAddress(shared.rows), 4 * u + (n & 3), lane,
                                    grids, thresholds);
    if ((n & 3) != 3) continue;
    *reinterpret_cast<uint4*>(block + device::ValueCodesOffset(D) + u * 512 + lane * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <int D, bool kTransforms>
__global__ void __launch_bounds__(kDemoteThreads<D, kTransforms>)
    DemotePagesKernel(const __grid_constant__ DemotePagesParams params) {
  constexpr int kThreads = kDemoteThreads<D, kTransforms>;
  __shared__ DemoteShared<D> shared;
  const DemotePlace place = {static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                             static_cast<int>(blockIdx.x >> 1), static_cast<int>(blockIdx.x & 1)};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  device::ptx::LaunchDependents();
  device::ptx::WaitForPredecessors();
  const DemoteJob pages = params.jobs[place.job];
  const uint8_t* rows = params.row_pool + place.layer * params.row_layer_stride +
                        (static_cast<int64_t>(pages.row_page) * params.kv_heads + place.head) *
                            device::Bf16BlockBytes(D) +
                        place.side * (device::Bf16BlockBytes(D) / 2);
  ReadRows<D, kThreads>(rows, shared);
  if constexpr (kTransforms) {
    __shared__ device::MatrixSlices<D> slices;
    const DemoteSide& side = params.sides[place.side];
    device::TransformRows<D>(
        side.matrix + place.layer * side.layer_stride + place.head * side.head_stride,
        side.mean == nullptr
            ? nullptr
            : side.mean + place.layer * side.mean_layer_stride + place.head * side.mean_head_stride,
        shared.rows, slices);
  }
  uint8_t* block = params.code_pool + place.layer * params.code_layer_stride +
                   (static_cast<int64_t>(pages.code_page) * params.kv_heads + place.head) *
                       device::BlockBytes(D);
  const uint32_t first_row =
      device::ptx::SharedAddress(shared.rows) + (16 * warp + (lane >> 2)) * (2 * D);
  device::DeviceGrid grids[2];
  if (warp < kEncodeWarps) MakeGrids<D>(params, place, warp, lane, first_row, grids);
  if (place.side == 0) {
    if (warp < kEncodeWarps) EncodeKeys<D>(grids, first_row, warp, lane, block);
    return;
  }
  if (warp < kEncodeWarps) {
    ShareValueGrids<D>(grids, warp, lane, shared);
    StorePairs(grids, warp, lane, block + device::ValuePairsOffset(D));
  }
  __syncthreads();
  EncodeValues<D, kThreads>(warp, lane, shared, block);
}

}  // namespace oscar::affine
