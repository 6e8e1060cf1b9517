// Mixtures of experts: rows f32, matrices bf16. A pair is a row and one of its experts: pair num_used * row + slot. Kernels run in the given
// stream, allocate nothing and wait for nothing; what a row gets does not depend on the others.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::engine {

inline constexpr int kMostExperts = 1024, kMostUsedExperts = 32;
inline constexpr int kChunkPairs = 8;  // of one expert that are multiplied together
constexpr int MostChunks(int num_pairs, int num_experts) {
  return num_pairs / kChunkPairs + (num_pairs < num_experts ? num_pairs : num_experts);
}

// Pairs of one expert: order[first .. first + count).
struct ExpertChunk {
  int32_t expert, first, count, unused;
};

// The experts of each row, the largest logits first and the lower index at equals, and the softmax over them; with a logit that is not
// finite the shares are NaN. Then the pairs by expert, in chunks.
struct ExpertRouteParams {
  const float* x;           // [num_rows, width], 16-byte aligned
  const uint16_t* router;   // bf16 [num_experts, width]
  float* logits;            // [num_rows, num_experts], scratch
  int32_t* experts;         // [pairs]
  float* shares;            // [pairs]
  int32_t* order;           // [pairs]
  ExpertChunk* chunks;      // [MostChunks]; those past the last have a count of 0
  int32_t num_rows, width;  // width: a multiple of 8
  int32_t num_experts, num_used;
};
cudaError_t LaunchExpertRoutes(const ExpertRouteParams& params, cudaStream_t stream);

// out[pair] = W_e x[pair / pairs_per_row], or with a second matrix silu(W_e x) * V_e x.
struct ExpertProductParams {
  const float* x;            // [pairs / pairs_per_row, in_width], 16-byte aligned
  const uint16_t* matrices;  // bf16 [experts, out_width, in_width]
  const uint16_t* seconds;   // likewise, or null
  const int32_t* order;
  const ExpertChunk* chunks;
  float* out;                // [pairs, out_width]
  int32_t pairs_per_row, num_chunks;  // num_chunks: MostChunks
  int32_t in_width, out_width;        // in_width: a multiple of 8
};
cudaError_t LaunchExpertProducts(const ExpertProductParams& params, cudaStream_t stream);

// out[row] = sum of the row's parts times their shares, in the order of the slots.
struct ExpertSumParams {
  const float* parts;   // [num_rows, num_used, width]
  const float* shares;  // [num_rows, num_used]
  float* out;           // [num_rows, width]
  int32_t num_rows, width, num_used;
};
cudaError_t LaunchExpertSum(const ExpertSumParams& params, cudaStream_t stream);

}  // namespace oscar::engine
