// The structs that cross to a kernel: one part of an attention call, one page side to demote. Shapes beside every pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oscar/codec_profile.h"
#include "oscar/types.h"
#include "src/base/strided_rows.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::kernels {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxTileRows = 64;    // rows, (query, head) pairs, that share the pages of one pass
inline constexpr int kMaxDecodeRows = 16;  // up to here tokens or channels lie in the SIMD lanes, above it rows do
inline constexpr int kTileTokens = kRowTileTokens;  // most tokens that are ever held as f32 (in L1)

// BF16 page of one KV head (oscar/kernels.h): 64 rows of K, then 64 rows of V, d bf16 each, raw.
constexpr std::size_t Bf16HeadBytes(int d) { return static_cast<std::size_t>(4 * kPageTokens) * static_cast<std::size_t>(d); }
constexpr std::size_t Bf16SideStart(KvSide side, int d) { return side == KvSide::kKey ? 0 : Bf16HeadBytes(d) / 2; }

// Pages of one kind, in the order of their positions: ids of two runs of a page table (sink and recent; one may be empty).
struct PageRuns {
  const int32_t* ids[2] = {};
  int num_pages[2] = {};
};

// Unnormalised softmax over some tokens, per row: output = sum p v, sum = sum p, p = 2^(score - max), scores in log2 units.
// No tokens: max = -inf, sum = 0, output = 0.
struct PartialSums {
  float* output = nullptr;  // [num_rows, d] f32
  float* max = nullptr;     // [num_rows]
  float* sum = nullptr;     // [num_rows]
};

// One part: some rows of one (sequence, KV head) against some of its pages, all BF16 or all encoded.
struct AttendPartParams {
  int head_dim = 0;
  int num_rows = 0;                         // row = query * queries.num_inner + head, at most kMaxTileRows
  base::StridedRows<const float> queries;   // f32, already in the space of the pages
  float scale_log2 = 0;                     // score scale * log2(e)
  const std::byte* pages = nullptr;         // this KV head in page 0 of the layer
  std::size_t page_stride = 0;              // bytes
  PageRuns runs;
  // BF16 only. Tokens of the last page that the first query sees; each further query sees one more. kPageTokens with
  // `causal_last_page` false when all queries see all of every page.
  bool causal_last_page = false;
  int last_page_tokens = kPageTokens;
  const RowCodec* row_codec = nullptr;      // encoded pages of a row codec only
  int first_encoded_page = 0;               // encoded: pages between the sink and the first one of the run
  int first_page_index = 0;                 // encoded: position / 64 of the first token of the run
  int head_together = 0;                    // which of the heads encoded together; `pages` are those of the first of them
  const RotaryEmbedding* rotary = nullptr;  // where the codec stores keys as they were before RoPE
  std::span<const uint16_t> channel_order;  // of the keys of the heads encoded together, where they have one
  // Where the key mean turns (encoded pages only; else null): scores of row r in page i of the run gain
  // mean_terms[r] . page_phases[i], in log2 units.
  const float* mean_terms = nullptr;        // [num_rows, d]
  const float* page_phases = nullptr;       // [pages of run 0, d]
  std::byte* scratch = nullptr;             // AttendScratchBytes(head_dim), 64-byte aligned
  PartialSums sums;
};

// One side of one (page, KV head), or of a unit of two pages where the codec encodes 128 tokens together: BF16 rows in, encoded
// bytes out.
struct DemoteSideParams {
  int head_dim = 0;
  KvSide side = KvSide::kKey;
  RowProfile row;
  std::span<const float> mean;       // of this page [d]; empty = 0
  const uint16_t* rows = nullptr;    // [64, d] bf16, raw
  std::byte* encoded = nullptr;      // the (page, KV head), K and V
  const RowCodec* row_codec = nullptr;      // of a row codec only
  const uint16_t* second_rows = nullptr;    // the second page of a unit of two: rows and encoded bytes
  std::byte* second_encoded = nullptr;
  int first_position = 0;                   // of the first row
  const RotaryEmbedding* rotary = nullptr;  // where the codec encodes keys as they were before RoPE
};

// Scratch of one attention part: transposed queries and outputs, scores, and one tile of K or V.
constexpr std::size_t AttendScratchBytes(int head_dim) {
  const std::size_t d = static_cast<std::size_t>(head_dim);
  return sizeof(float) * (2 * d * kMaxTileRows + kPageTokens * kMaxTileRows + 2 * d * kTileTokens);
}

}  // namespace oscar::kernels
