// The split of an attention call into tiles of query rows and parts of pages, and the workspace that holds it. A pure function
// of positions and shape: neither the number of threads nor other sequences of the batch change a bit of the result; with
// AttendParams::batch_invariant other queries of the sequence do not either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "oscar/kernels.h"
#include "src/base/arena.h"
#include "src/kv/kernels/params.h"

namespace oscar::kernels {

// Queries of one sequence inside one aligned block of 64 positions, where B(p) is constant (method.md 5.1) (one query of it when
// the call is batch-invariant), times some query
// heads of one KV head: at most kMaxTileRows rows that see the same pages.
struct AttendTile {
  int sequence = 0;
  int first_query = 0, num_queries = 0;  // within the sequence
  int kv_head = 0;
  int first_head = 0, num_heads = 0;     // within the group of the KV head
  int first_part = 0;                    // encoded parts, then BF16 parts
  int num_encoded_parts = 0, num_bf16_parts = 0;
  int64_t query_token = 0;               // of first_query, within params.queries
  int64_t first_row = 0;                 // of the tile, in the row arrays of the workspace
  int num_rows() const { return num_queries * num_heads; }
};

// Some pages of one kind for one tile: [first_page, first_page + num_pages) counted from the first page of that kind.
struct AttendPart {
  int tile = 0;
  bool encoded = false;
  bool last = false;  // holds the last page of its kind
  int first_page = 0, num_pages = 0;
  int64_t first_row = 0;  // in the partial sums
};

// Pages that the queries of one aligned block see: encoded [sink, recent_begin), BF16 [0, sink_end) and [recent_begin, end).
struct VisiblePages {
  int sink_end = 0;      // page indices
  int recent_begin = 0;
  int end = 0;
  int num_encoded() const { return recent_begin - sink_end; }
  int num_bf16() const { return sink_end + end - recent_begin; }
};
// For queries whose last position is `last_position`. `unit_tokens`: CodecInfo::encode_tokens, or 0 where nothing is encoded (bf16).
VisiblePages PagesSeenFrom(int last_position, int sink, int recent, int unit_tokens);
// The unit of a codec, as the functions here take it.
inline int UnitTokens(const CodecInfo& codec) { return codec.page_bytes == nullptr ? 0 : codec.encode_tokens; }

struct AttendPlan {
  int head_dim = 0;
  std::span<AttendTile> tiles;
  std::span<AttendPart> parts;
  bool any_encoded = false;
  int64_t num_rows = 0;       // of all tiles
  int64_t num_part_rows = 0;  // of all parts
  float* transformed_queries = nullptr;  // [num_rows, d], null when no tile has an encoded part
  float* mean_terms = nullptr;           // [num_rows, d] of MeanTerms where the key mean turns; null as above
  PartialSums part_sums;      // [num_part_rows]
  PartialSums encoded_sums;   // [num_rows]: encoded parts merged, in code space; null as above
  PartialSums bf16_sums;      // [num_rows]
  float* inverse_outputs = nullptr;      // [num_rows, d]; null as above
  std::byte* scratch = nullptr;          // one per thread
  std::size_t scratch_bytes = 0;         // of one

  PartialSums SumsAt(const PartialSums& sums, int64_t row) const {
    return {sums.output + row * head_dim, sums.max + row, sums.sum + row};
  }
};

// Plans `params` (its tables are not read) and carves the workspace out of `arena`; with a counting arena, only its size is
// of use.
AttendPlan PlanAttend(const KvShape& shape, const AttendParams& params, int unit_tokens, int num_threads, base::Arena& arena);

}  // namespace oscar::kernels
