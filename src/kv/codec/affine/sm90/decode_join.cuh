// Joins the two halves of a (sequence, KV head) in separate spaces (JoinParams): the code part out of code space, then both parts by
// their mass. By the whole CTA that completed them, in the memory where warps publish, which is free then.
#pragma once

#include <cstdint>

#include "src/kv/codec/affine/sm90/decode_config.h"
#include "src/kv/codec/affine/sm90/decode_merge.cuh"
#include "src/kv/kernels/cuda/ptx/mma.cuh"

namespace oscar::affine::sm90 {

template <class Config>
struct JoinShape {
  static constexpr int kD = Config::kHeadDim, kHeads = Config::kGroupHeads, kRows = kHeads * kD;
  // The published memory in units of the rows of a group: one for the row parts, the others for the code part.
  static constexpr int kUnits = Config::kMergeRecords * Config::kHeadTile / kHeads;
  // Pieces of the inner dimension of the product, each summed by the threads of D columns.
  static constexpr int Pieces() {
    int pieces = 1;
    while (2 * pieces * kD <= Config::kThreads && 2 * pieces <= kUnits - 1) pieces *= 2;
    return pieces;
  }
  static constexpr int kPieces = Pieces();
  static_assert(kUnits >= 2 && kD % (4 * kPieces) == 0);
  // Columns of a thread, where there are fewer threads.
  static constexpr int kColumns = (kD + Config::kThreads - 1) / Config::kThreads;
  // Neighbouring dimensions of a lane where records are joined: four take 64 registers, which 512 threads do not have.
  static constexpr int Width() {
    constexpr int each = 2 * kRows / Config::kThreads;
    return kD % 128 == 0 && each >= 4 && Config::kThreads < 512 ? 4 : (each >= 2 ? 2 : 1);
  }
  static constexpr int kWidth = Width();
};

// The matrix of the item's KV head on its way to L2, a share by each CTA of the pair.
template <class Config>
__device__ __forceinline__ void PrefetchJoinMatrix(const DecodeParams& params, const DecodeItem& item) {
  if (params.join.matrix == nullptr || params.join.num_code_sequences == 0) return;
  const char* matrix = reinterpret_cast<const char*>(params.join.matrix + item.head * params.join.matrix_stride);
  constexpr int kLines = Config::kHeadDim * Config::kHeadDim * 4 / 128;
  const int parts = min(item.pair_num_slots, kLines), part = item.slot - item.pair_first_slot;
  for (int line = part + parts * static_cast<int>(threadIdx.x); line < kLines; line += parts * Config::kThreads)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(matrix + 128 * line));
}

// Parts of each head, normalised, and their (m, l): code first, then rows. A part without tokens is zeros.
template <class Config>
__device__ __forceinline__ void JoinHalves(const DecodeParams& params, const DecodeItem& item, float* code, float* rows, float2* masses) {
  using Shape = JoinShape<Config>;
  constexpr int kD = Config::kHeadDim, kWidth = Shape::kWidth, kSegments = kD / (32 * kWidth);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_code = item.sequence < params.join.num_code_sequences;
#pragma unroll 1
  for (int segment = warp; segment < 2 * params.group * kSegments; segment += Config::kWarps) {
    const int side = segment / (params.group * kSegments), head = segment / kSegments % params.group;
    const bool is_own = is_code == (side == 0);
    const int dim = (segment % kSegments * 32 + lane) * kWidth;
    const JoinedRecords<kWidth> joined =
        JoinRecords<Config, kWidth>(params, is_own ? item.pair_first_slot : item.sibling_first_slot,
                                    is_own ? item.pair_num_slots : item.sibling_num_slots, head, dim, lane);
    float* const out = (side == 0 ? code : rows) + head * kD + dim;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = joined.l == 0.0f ? 0.0f : joined.sum.x[i] / joined.l;
    if (segment % kSegments == 0 && lane == 0) masses[side * Config::kGroupHeads + head] = make_float2(joined.m, joined.l);
  }
}

// code [heads, D] times the matrix, as kPieces sums [kPieces, heads, D] in its place; eight heads at a time, for the registers.
template <class Config>
__device__ __forceinline__ void LeaveCodeSpace(const float* matrix, float* code) {
  using Shape = JoinShape<Config>;
  constexpr int kD = Config::kHeadDim, kHeads = Config::kGroupHeads, kInner = kD / Shape::kPieces, kAtOnce = kHeads < 8 ? kHeads : 8;
  constexpr int kColumns = Shape::kColumns;
  const int column = static_cast<int>(threadIdx.x) % kD, piece = static_cast<int>(threadIdx.x) / kD;
#pragma unroll 1
  for (int first = 0; first < kHeads; first += kAtOnce) {
    float sums[kColumns][kAtOnce] = {};
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int own = column + n * Config::kThreads;
      if (piece >= Shape::kPieces || own >= kD) continue;
#pragma unroll 4
      for (int j = piece * kInner; j < (piece + 1) * kInner; j += 4) {
        float m[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) m[i] = __ldg(matrix + (j + i) * kD + own);
#pragma unroll
        for (int h = 0; h < kAtOnce; ++h) {
          const float4 x = *reinterpret_cast<const float4*>(code + (first + h) * kD + j);
          sums[n][h] = fmaf(x.x, m[0], fmaf(x.y, m[1], fmaf(x.z, m[2], fmaf(x.w, m[3], sums[n][h]))));
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int own = column + n * Config::kThreads;
      if (piece >= Shape::kPieces || own >= kD) continue;
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) code[(piece * kHeads + first + h) * kD + own] = sums[n][h];
    }
    __syncthreads();
  }
}

// Writes the output rows of the sequence and KV head of shared.done. A barrier must follow before warps publish again. A function of
// its own, because the loop over pages has no registers to spare for what the compiler would move out of this.
template <class Config>
__device__ __noinline__ void JoinPair(const DecodeParams& params) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  typename Config::Shared& shared = *reinterpret_cast<typename Config::Shared*>(shared_bytes);
  const DecodeItem item = shared.done;
  using Shape = JoinShape<Config>;
  constexpr int kD = Config::kHeadDim, kHeads = Config::kGroupHeads;
  float* const rows = &shared.merge[0][0][0];
  float* const code = rows + Shape::kRows;
  float2* const masses = reinterpret_cast<float2*>(&shared.stats[0][0][0]);
  static_assert(sizeof(shared.stats) >= 2 * kHeads * sizeof(float2));
  const kernels::cuda::JoinParams& join = params.join;
  JoinHalves<Config>(params, item, code, rows, masses);
  __syncthreads();
  const bool has_matrix = join.matrix != nullptr && join.num_code_sequences > 0;
  if (has_matrix) LeaveCodeSpace<Config>(join.matrix + item.head * join.matrix_stride, code);
  const int sequence = item.sequence < join.num_code_sequences ? item.sequence : item.sequence - join.num_code_sequences;
  float* const out = join.out + sequence * join.token_stride;
#pragma unroll 1
  for (int i = threadIdx.x; i < params.group * kD; i += Config::kThreads) {
    const int head = i / kD, dim = i % kD;
    float x = code[head * kD + dim];
    for (int piece = 1; has_matrix && piece < Shape::kPieces; ++piece) x += code[(piece * kHeads + head) * kD + dim];
    if (join.mean != nullptr) x += join.mean[item.head * join.mean_stride + dim];
    const float2 code_mass = masses[head], row_mass = masses[kHeads + head];
    const float top = fmaxf(code_mass.x, row_mass.x);
    const float code_weight = code_mass.y == 0.0f ? 0.0f : code_mass.y * ptx::Exp2(code_mass.x - top);
    const float row_weight = row_mass.y == 0.0f ? 0.0f : row_mass.y * ptx::Exp2(row_mass.x - top);
    const float total = code_weight + row_weight;
    // A part without tokens counts for nothing, whatever the mean is.
    const float sum = fmaf(row_weight, rows[head * kD + dim], code_weight == 0.0f ? 0.0f : code_weight * x);
    out[(item.head * params.group + head) * join.head_stride + dim] = total == 0.0f ? 0.0f : sum / total;
  }
}

}  // namespace oscar::affine::sm90
