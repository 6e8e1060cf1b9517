// Draws of tokens where the logits are (gpu.md 7.5): logit changes, temperature, top-k, top-p, min-p, then the token at a given share of
// what remains. As Sampler draws, with probabilities in f32 that are summed as integers: the same token whatever the batch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "src/engine/sample/token_draw.h"

namespace oscar::engine {

// TokenDraw of a row, its changes among those of all rows.
struct DrawRow {
  double uniform;
  float temperature, top_p, min_p;
  int32_t top_k;
  int32_t first_change, num_changes;
};

// Draws as the kernel takes them.
struct DrawRows {
  explicit DrawRows(std::span<const TokenDraw> draws) {
    for (const TokenDraw& draw : draws) {
      rows.push_back({draw.uniform, draw.temperature, draw.top_p, draw.min_p, draw.top_k, static_cast<int32_t>(changes.size()),
                      static_cast<int32_t>(draw.changes.size())});
      changes.insert(changes.end(), draw.changes.begin(), draw.changes.end());
    }
  }
  std::vector<DrawRow> rows;
  std::vector<LogitChange> changes;
};

struct TokenDrawParams {
  float* logits;               // [num_rows, width], changed in place
  const DrawRow* rows;         // [num_rows]
  const LogitChange* changes;
  uint64_t* keys;              // [num_rows, width] scratch
  uint64_t* drawn;             // [num_rows]: the token; above 2^32: it is the first whose logit is not finite
  int32_t num_rows, width;     // width at most 2^19, so that sums of probabilities fit
};
inline constexpr int kMostDrawWidth = 1 << 19;
cudaError_t LaunchTokenDraw(const TokenDrawParams& params, cudaStream_t stream);

}  // namespace oscar::engine
