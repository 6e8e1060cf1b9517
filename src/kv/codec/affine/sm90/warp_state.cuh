// What a warp of the decode attention kernel keeps while it goes over an item.
#pragma once

#include "src/kv/codec/affine/sm90/decode_config.h"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::sm90 {

namespace ptx = kernels::cuda::ptx;

// Running softmax state of one warp for one item. The lane's heads: t (head tile 4) or 2t, 2t + 1
// (head tile 8).
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
  // Moves the reference so that the largest `excess` over all lanes of a head becomes `target`; it
  // is never lowered. Returns by how much it rose.
  __device__ __forceinline__ void Raise(const float (&largest)[kHeads], float target,
                                        float (&shift)[kHeads]) {
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

}  // namespace oscar::affine::sm90
