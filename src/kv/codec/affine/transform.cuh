// y = bf16((x - mean) M) for the 64 rows of a page side in shared memory, bit for bit what the CPU
// makes (src/kv/transform/ apply_transform-inl.h with kFused = false): fp32, every product and sum
// rounded, rows of M in order. Not for tensor cores, whose sums round otherwise; prefill pays 0.15
// ms per 8,192 tokens and layer (d = 128, 8 KV heads) for equal bytes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/kernels/cuda/ptx/async_copy.cuh"
#include "src/kv/kernels/cuda/ptx/barrier.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::device {

// A thread makes 8 columns of 8 rows, or of 4 at d = 64.
template <int D>
inline constexpr int kTransformThreads = D < 128 ? 128 : D;
template <int D>
inline constexpr int kTransformRows = kTokens* D / 8 / kTransformThreads<D>;
// Rows of M in shared memory at a time; a 16-byte piece of x is 8 columns.
template <int D>
inline constexpr int kSliceRows = D <= 128 ? 8 : 4;

template <int D>
struct MatrixSlices {
  alignas(16) float rows[2][kSliceRows<D>][D];
  float means[D];
};

template <int D>
__device__ __forceinline__ void RequestSlice(const float* matrix, int slice,
                                             MatrixSlices<D>& slices) {
  constexpr int kPieces = kSliceRows<D> * D / 4;
  const float* source = matrix + static_cast<size_t>(slice) * kSliceRows<D> * D;
  float* target = &slices.rows[slice & 1][0][0];
  for (int i = threadIdx.x; i < kPieces; i += kTransformThreads<D>) {
    kernels::cuda::ptx::CopyAsync16(kernels::cuda::ptx::SharedAddress(target + 4 * i),
                                    source + 4 * i, true);
  }
}

// acc[r][c] += x[row_first + r][k] M[k][column c], k = 0 .. 3 of a group of four.
template <int D>
__device__ __forceinline__ void AddFourColumns(const uint2 (&x)[kTransformRows<D>],
                                               const float* means, const float (*matrix)[D],
                                               int column, float (&acc)[kTransformRows<D>][8]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float4 low = *reinterpret_cast<const float4*>(matrix[k] + column);
    const float4 high = *reinterpret_cast<const float4*>(matrix[k] + D / 2 + column);
    const float m[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const float mean = means[k];
#pragma unroll
    for (int r = 0; r < kTransformRows<D>; ++r) {
      const uint32_t pair = k < 2 ? x[r].x : x[r].y;
      const float value =
          __fsub_rn(__uint_as_float((k & 1) == 0 ? pair << 16 : pair & 0xFFFF0000u), mean);
#pragma unroll
      for (int c = 0; c < 8; ++c) acc[r][c] = __fadd_rn(__fmul_rn(m[c], value), acc[r][c]);
    }
  }
}

__device__ __forceinline__ uint32_t RoundPairToBf16(float low, float high) {
  return kernels::cuda::ptx::PackBf16(low, high);
}

// In place; all kTransformThreads<D> threads. matrix: [D, D] in global memory, 16-byte aligned;
// mean: [D] or null. rows: 64 rows of 2 D bytes whose 16-byte piece i stands at i ^ (token & 7).
// Ends with a barrier.
template <int D>
__device__ __forceinline__ void TransformRows(const float* matrix, const float* mean, uint8_t* rows,
                                              MatrixSlices<D>& slices) {
  constexpr int kRows = kTransformRows<D>, kSlices = D / kSliceRows<D>;
  const int column = threadIdx.x % (D / 8) * 4, first_row = threadIdx.x / (D / 8) * kRows;
  for (int i = threadIdx.x; i < D; i += kTransformThreads<D>)
    slices.means[i] = mean == nullptr ? 0.0f : mean[i];
  RequestSlice<D>(matrix, 0, slices);
  float acc[kRows][8];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < 8; ++c) acc[r][c] = 0.0f;
  }
#pragma unroll 1
  for (int slice = 0; slice < kSlices; ++slice) {
    kernels::cuda::ptx::CopyAsyncWaitAll();
    __syncthreads();  // the slice is there for all, and the other buffer is free
    if (slice + 1 < kSlices) RequestSlice<D>(matrix, slice + 1, slices);
#pragma unroll
    for (int group = 0; group < kSliceRows<D> / 4; ++group) {
      const int k = slice * kSliceRows<D> + 4 * group;
      uint2 x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = first_row + r;
        x[r] = *reinterpret_cast<const uint2*>(rows + row * (2 * D) +
                                               (((k >> 3) ^ (row & 7)) << 4) + 2 * (k & 4));
      }
      AddFourColumns<D>(x, slices.means + k, &slices.rows[slice & 1][4 * group], column, acc);
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first_row + r;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c = half * (D / 2) + column;
      const float* y = &acc[r][4 * half];
      *reinterpret_cast<uint2*>(rows + row * (2 * D) + (((c >> 3) ^ (row & 7)) << 4) +
                                2 * (c & 4)) =
          make_uint2(RoundPairToBf16(y[0], y[1]), RoundPairToBf16(y[2], y[3]));
    }
  }
  __syncthreads();
}

}  // namespace oscar::affine::device
