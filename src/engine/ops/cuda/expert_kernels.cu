// Mixtures of experts. A warp finds the experts of a row. One CTA sorts all pairs by expert, in chunks of up to eight. Products then take a
// chunk as the eight columns of the matrix unit's right operand: each matrix of an expert is read once for eight of its rows. Rows are
// multiplied as two bf16 terms, which keep 16 bits of them.
#include <algorithm>

#include "src/engine/ops/cuda/expert_kernels.h"
#include "src/engine/ops/cuda/matrix_ptx.cuh"

namespace oscar::engine {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTileRows = 16;     // outputs of a tile
constexpr int kUnit = 32;         // inner elements that a warp takes at once: eight of each lane of four
constexpr int kUnitsAtOnce = 4;   // whose loads are under way together

__device__ __forceinline__ float LowBf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighBf16(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ __forceinline__ float WarpSum(float value) {
  for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(~0u, value, mask);
  return value;
}

// A warp per logit: one CTA for eight experts of a row.
__global__ void __launch_bounds__(kThreads) LogitsKernel(const ExpertRouteParams params) {
  const int e = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (e >= params.num_experts) return;
  const int64_t row = blockIdx.x;
  const float* const x = params.x + row * params.width;
  const uint16_t* const weights = params.router + static_cast<int64_t>(e) * params.width;
  float sum = 0;
#pragma unroll 4
  for (int k = 8 * lane; k < params.width; k += 8 * 32) {
    const uint4 w = __ldg(reinterpret_cast<const uint4*>(weights + k));
    const float4 a = *reinterpret_cast<const float4*>(x + k), b = *reinterpret_cast<const float4*>(x + k + 4);
    sum = fmaf(LowBf16(w.x), a.x, fmaf(HighBf16(w.x), a.y, fmaf(LowBf16(w.y), a.z, fmaf(HighBf16(w.y), a.w, sum))));
    sum = fmaf(LowBf16(w.z), b.x, fmaf(HighBf16(w.z), b.y, fmaf(LowBf16(w.w), b.z, fmaf(HighBf16(w.w), b.w, sum))));
  }
  sum = WarpSum(sum);
  if (lane == 0) params.logits[row * params.num_experts + e] = sum;
}

// A warp per row chooses. Lane l has logits l, l + 32, ...
__global__ void __launch_bounds__(kThreads) ChooseKernel(const ExpertRouteParams params) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= params.num_rows) return;
  const float* const logits = params.logits + row * params.num_experts;
  float poison = 0;
  for (int e = lane; e < params.num_experts; e += 32) poison += logits[e] * 0.0f;
  poison = WarpSum(poison);
  uint32_t taken = 0;  // of the lane's logits
  float largest = 0, total = poison, mine = 0;
  int my_expert = 0;
  for (int slot = 0; slot < params.num_used; ++slot) {
    int best = -1;
    for (int e = lane, i = 0; e < params.num_experts; e += 32, ++i) {
      if (((taken >> i) & 1) == 0 && (best < 0 || logits[e] > logits[best])) best = e;
    }
    for (int mask = 16; mask > 0; mask >>= 1) {
      const int other = __shfl_xor_sync(~0u, best, mask);
      if (other < 0) continue;
      if (best < 0 || logits[other] > logits[best] || (logits[other] == logits[best] && other < best)) best = other;
    }
    best = __shfl_sync(~0u, best, 0);  // NaN leaves lanes of different minds
    if (best % 32 == lane) taken |= 1u << (best / 32);
    if (slot == 0) largest = logits[best];
    const float share = expf(logits[best] - largest);
    total += share;
    if (lane == slot) {
      mine = share;
      my_expert = best;
    }
  }
  if (lane >= params.num_used) return;
  params.experts[row * params.num_used + lane] = my_expert;
  params.shares[row * params.num_used + lane] = mine / total;
}

// One CTA of a thread per expert.
__global__ void __launch_bounds__(kMostExperts) SortKernel(const ExpertRouteParams params) {
  __shared__ int counts[kMostExperts], pair_ends[kMostExperts], chunk_ends[kMostExperts];
  const int thread = static_cast<int>(threadIdx.x);
  const int num_pairs = params.num_rows * params.num_used;
  counts[thread] = 0;
  __syncthreads();
  for (int pair = thread; pair < num_pairs; pair += kMostExperts) atomicAdd(&counts[params.experts[pair]], 1);
  __syncthreads();
  const int count = counts[thread], num_chunks = (count + kChunkPairs - 1) / kChunkPairs;
  pair_ends[thread] = count;
  chunk_ends[thread] = num_chunks;
  __syncthreads();
  for (int step = 1; step < kMostExperts; step *= 2) {
    const int pairs = thread >= step ? pair_ends[thread - step] : 0, chunks = thread >= step ? chunk_ends[thread - step] : 0;
    __syncthreads();
    pair_ends[thread] += pairs;
    chunk_ends[thread] += chunks;
    __syncthreads();
  }
  const int first = pair_ends[thread] - count;
  for (int i = 0; i < num_chunks; ++i) {
    const int begin = i * kChunkPairs;
    params.chunks[chunk_ends[thread] - num_chunks + i] = {thread, first + begin, min(kChunkPairs, count - begin), 0};
  }
  const int all_chunks = chunk_ends[kMostExperts - 1], most = MostChunks(num_pairs, params.num_experts);
  for (int i = all_chunks + thread; i < most; i += kMostExperts) params.chunks[i] = {0, 0, 0, 0};
  counts[thread] = first;
  __syncthreads();
  for (int pair = thread; pair < num_pairs; pair += kMostExperts) params.order[atomicAdd(&counts[params.experts[pair]], 1)] = pair;
}

// Eight f32 values as bf16 pairs, and what these leave as another four.
__device__ __forceinline__ void SplitBf16(const float4& a, const float4& b, uint32_t (&terms)[4], uint32_t (&rests)[4]) {
  const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    terms[i] = ptx::PackBf16(values[2 * i], values[2 * i + 1]);
    rests[i] = ptx::PackBf16(values[2 * i] - LowBf16(terms[i]), values[2 * i + 1] - HighBf16(terms[i]));
  }
}

// sums += the 16 rows of a matrix whose rows G and G + 8 this lane holds eight elements of, times the eight pairs. Inner elements are taken
// in the same order on both sides, one that gives a lane whole pieces of 16 bytes.
__device__ __forceinline__ void Multiply(const uint4& upper, const uint4& lower, const uint32_t (&terms)[4], const uint32_t (&rests)[4], float (&sums)[4]) {
  const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
  ptx::MmaBf16(sums, first, terms[0], terms[1]);
  ptx::MmaBf16(sums, second, terms[2], terms[3]);
  ptx::MmaBf16(sums, first, rests[0], rests[1]);
  ptx::MmaBf16(sums, second, rests[2], rests[3]);
}

// CTA (i, c): tiles of chunk c. kSplit warps share a tile's inner elements.
template <bool kIsGated, int kSplit>
__global__ void __launch_bounds__(kThreads) ProductKernel(const ExpertProductParams params) {
  constexpr int kParts = kIsGated ? 2 : 1;
  __shared__ float parts[kParts][kWarps][4][32];
  const ExpertChunk chunk = params.chunks[blockIdx.y];
  if (chunk.count == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int tile = static_cast<int>(blockIdx.x) * (kWarps / kSplit) + warp / kSplit, part = warp % kSplit;
  const int row = tile * kTileRows + g;
  const int64_t matrix = static_cast<int64_t>(chunk.expert) * params.out_width;
  const uint16_t* rows[kParts][2];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const uint16_t* const all = p == 0 ? params.matrices : params.seconds;
#pragma unroll
    for (int half = 0; half < 2; ++half) rows[p][half] = all + (matrix + min(row + 8 * half, params.out_width - 1)) * params.in_width;
  }
  const bool has_pair = g < chunk.count;
  const int pair = params.order[chunk.first + (has_pair ? g : 0)];
  const float* const x = params.x + static_cast<int64_t>(pair / params.pairs_per_row) * params.in_width;
  float sums[kParts][4] = {};
  if (tile * kTileRows < params.out_width) {
    for (int start = part * kUnitsAtOnce * kUnit; start < params.in_width; start += kSplit * kUnitsAtOnce * kUnit) {
      uint4 upper[kUnitsAtOnce][kParts], lower[kUnitsAtOnce][kParts];
#pragma unroll
      for (int unit = 0; unit < kUnitsAtOnce; ++unit) {
        const int k = start + unit * kUnit + 8 * t;
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          upper[unit][p] = lower[unit][p] = make_uint4(0, 0, 0, 0);
          if (k >= params.in_width) continue;
          upper[unit][p] = __ldg(reinterpret_cast<const uint4*>(rows[p][0] + k));
          lower[unit][p] = __ldg(reinterpret_cast<const uint4*>(rows[p][1] + k));
        }
      }
#pragma unroll
      for (int unit = 0; unit < kUnitsAtOnce; ++unit) {
        const int k = start + unit * kUnit + 8 * t;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (has_pair && k < params.in_width) {
          a = *reinterpret_cast<const float4*>(x + k);
          b = *reinterpret_cast<const float4*>(x + k + 4);
        }
        uint32_t terms[4], rests[4];
        SplitBf16(a, b, terms, rests);
#pragma unroll
        for (int p = 0; p < kParts; ++p) Multiply(upper[unit][p], lower[unit][p], terms, rests, sums[p]);
      }
    }
  }
  if (kSplit > 1) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) parts[p][warp][i][lane] = sums[p][i];
    }
    __syncthreads();
    if (part != 0) return;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        for (int other = 1; other < kSplit; ++other) sums[p][i] += parts[p][warp + other][i][lane];
      }
    }
  }
  // Lane (G, t) has outputs G and G + 8 of pairs 2 t and 2 t + 1.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2, out_row = row + 8 * (i / 2);
    if (column >= chunk.count || out_row >= params.out_width) continue;
    const float value = sums[0][i];
    const float result = kIsGated ? value / (1.0f + __expf(-value)) * sums[kParts - 1][i] : value;
    params.out[static_cast<int64_t>(params.order[chunk.first + column]) * params.out_width + out_row] = result;
  }
}

template <bool kIsGated, int kSplit>
void LaunchProduct(const ExpertProductParams& params, cudaStream_t stream) {
  const int tiles = (params.out_width + kTileRows - 1) / kTileRows, tiles_per_cta = kWarps / kSplit;
  const dim3 grid(static_cast<unsigned>((tiles + tiles_per_cta - 1) / tiles_per_cta), static_cast<unsigned>(params.num_chunks));
  ProductKernel<kIsGated, kSplit><<<grid, kThreads, 0, stream>>>(params);
}

template <bool kIsGated>
void LaunchSplit(const ExpertProductParams& params, cudaStream_t stream) {
  const int turns = (params.in_width + kUnit * kUnitsAtOnce - 1) / (kUnit * kUnitsAtOnce);  // of one warp alone
  if (turns >= 8) return LaunchProduct<kIsGated, 8>(params, stream);
  if (turns >= 4) return LaunchProduct<kIsGated, 4>(params, stream);
  LaunchProduct<kIsGated, 1>(params, stream);
}

__global__ void __launch_bounds__(kThreads) SumKernel(const ExpertSumParams params) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(params.num_rows) * params.width) return;
  const int64_t row = i / params.width;
  float sum = 0;
  for (int slot = 0; slot < params.num_used; ++slot) {
    const int64_t pair = row * params.num_used + slot;
    sum = fmaf(params.shares[pair], params.parts[pair * params.width + i % params.width], sum);
  }
  params.out[i] = sum;
}

}  // namespace

cudaError_t LaunchExpertRoutes(const ExpertRouteParams& params, cudaStream_t stream) {
  const bool fits = params.num_rows >= 1 && params.num_used >= 1 && params.num_used <= params.num_experts && params.num_used <= kMostUsedExperts &&
                    params.num_experts <= kMostExperts && params.width % 8 == 0;
  if (!fits) return cudaErrorInvalidValue;
  const auto rows = static_cast<unsigned>(params.num_rows), eights = static_cast<unsigned>((params.num_experts + kWarps - 1) / kWarps);
  LogitsKernel<<<dim3(rows, eights), kThreads, 0, stream>>>(params);
  ChooseKernel<<<(rows + kWarps - 1) / kWarps, kThreads, 0, stream>>>(params);
  SortKernel<<<1, kMostExperts, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchExpertProducts(const ExpertProductParams& params, cudaStream_t stream) {
  if (params.in_width % 8 != 0 || params.num_chunks < 1 || params.num_chunks > 65535) return cudaErrorInvalidValue;
  if (params.seconds != nullptr) {
    LaunchSplit<true>(params, stream);
  } else {
    LaunchSplit<false>(params, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchExpertSum(const ExpertSumParams& params, cudaStream_t stream) {
  const int64_t count = int64_t{params.num_rows} * params.width;
  SumKernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace oscar::engine
