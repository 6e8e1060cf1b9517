#include "src/kv/kernels/attend_plan.h"

#include <algorithm>

namespace oscar::kernels {
namespace {

// Queries of a tile from which on its pages are not split: there are enough rows, tiles and heads to keep threads busy.
constexpr int kUnsplitQueries = 16;
// Pages of a part when they are split: 512 tokens, against which the merge of a part costs under one percent.
constexpr int kPartPages = 8;
// Most parts of one kind and tile; bounds the workspace and what starts anew with a part (128K tokens in parts of 4096); 32 per KV head
// keep that many threads busy at batch 1, and may not depend on their number: results would.
constexpr int kMaxParts = 32;

int PagesPerPart(int num_pages, int num_queries) {
  if (num_queries >= kUnsplitQueries) return std::max(num_pages, 1);
  return std::max(kPartPages, (num_pages + kMaxParts - 1) / kMaxParts);
}

int NumParts(int num_pages, int num_queries) {
  const int pages_per_part = PagesPerPart(num_pages, num_queries);
  return (num_pages + pages_per_part - 1) / pages_per_part;
}

// Calls visit(tile) for every tile, its parts not yet placed. Later queries, which see more pages, come first.
template <class Visit>
void ForEachTile(const KvShape& shape, const AttendParams& params, int unit_tokens, const Visit& visit) {
  int64_t sequence_token = 0;
  for (size_t s = 0; s < params.sequences.size(); ++s) {
    const AttendSequence& sequence = params.sequences[s];
    for (int end = sequence.num_queries; end > 0;) {
      const int last_position = sequence.first_position + end - 1;
      const int block = std::max(0, last_position / kPageTokens * kPageTokens - sequence.first_position);
      const int first = params.batch_invariant ? end - 1 : block;
      const VisiblePages pages = PagesSeenFrom(last_position, params.sink, params.recent, unit_tokens);
      AttendTile tile;
      tile.sequence = static_cast<int>(s);
      tile.first_query = first;
      tile.num_queries = end - first;
      tile.query_token = sequence_token + first;
      tile.num_encoded_parts = NumParts(pages.num_encoded(), tile.num_queries);
      tile.num_bf16_parts = NumParts(pages.num_bf16(), tile.num_queries);
      const int most_heads = std::max(1, kMaxTileRows / tile.num_queries);
      for (tile.kv_head = 0; tile.kv_head < shape.num_kv_heads; ++tile.kv_head) {
        for (tile.first_head = 0; tile.first_head < shape.group(); tile.first_head += tile.num_heads) {
          tile.num_heads = std::min(most_heads, shape.group() - tile.first_head);
          visit(tile);
        }
      }
      end = first;
    }
    sequence_token += sequence.num_queries;
  }
}

PartialSums TakeSums(base::Arena& arena, int64_t num_rows, int head_dim) {
  const auto rows = static_cast<std::size_t>(num_rows);
  PartialSums sums;
  sums.output = arena.Take<float>(rows * static_cast<std::size_t>(head_dim));
  sums.max = arena.Take<float>(rows);
  sums.sum = arena.Take<float>(rows);
  return sums;
}

// Where the next tile and its parts go.
struct PlanCursor {
  int tile = 0, part = 0;
  int64_t row = 0, part_row = 0;
};

void PlaceTile(const AttendParams& params, int unit_tokens, const AttendTile& found, AttendPlan& plan, PlanCursor& next) {
  AttendTile& tile = plan.tiles[static_cast<std::size_t>(next.tile)];
  tile = found;
  tile.first_part = next.part;
  tile.first_row = next.row;
  const int last_position = params.sequences[static_cast<size_t>(tile.sequence)].first_position + tile.first_query + tile.num_queries - 1;
  const VisiblePages pages = PagesSeenFrom(last_position, params.sink, params.recent, unit_tokens);
  for (const bool encoded : {true, false}) {
    const int num_pages = encoded ? pages.num_encoded() : pages.num_bf16();
    const int pages_per_part = PagesPerPart(num_pages, tile.num_queries);
    for (int first = 0; first < num_pages; first += pages_per_part) {
      AttendPart part;
      part.tile = next.tile;
      part.encoded = encoded;
      part.first_page = first;
      part.num_pages = std::min(pages_per_part, num_pages - first);
      part.last = first + part.num_pages == num_pages;
      part.first_row = next.part_row;
      next.part_row += tile.num_rows();
      plan.parts[static_cast<size_t>(next.part++)] = part;
    }
  }
  next.row += tile.num_rows();
  ++next.tile;
}

}  // namespace

VisiblePages PagesSeenFrom(int last_position, int sink, int recent, int unit_tokens) {
  VisiblePages pages;
  pages.end = last_position / kPageTokens + 1;
  pages.sink_end = std::min(sink / kPageTokens, pages.end);
  pages.recent_begin = pages.sink_end;
  if (unit_tokens > 0) {
    pages.recent_begin = std::min(pages.end, EncodedEnd(last_position, sink, recent, unit_tokens) / kPageTokens);
  }
  return pages;
}

AttendPlan PlanAttend(const KvShape& shape, const AttendParams& params, int unit_tokens, int num_threads, base::Arena& arena) {
  AttendPlan plan;
  plan.head_dim = shape.head_dim;
  int num_tiles = 0, num_parts = 0;
  ForEachTile(shape, params, unit_tokens, [&](const AttendTile& tile) {
    ++num_tiles;
    const int parts = tile.num_encoded_parts + tile.num_bf16_parts;
    num_parts += parts;
    plan.num_rows += tile.num_rows();
    plan.num_part_rows += static_cast<int64_t>(parts) * tile.num_rows();
    plan.any_encoded = plan.any_encoded || tile.num_encoded_parts > 0;
  });
  AttendTile* tiles = arena.Take<AttendTile>(static_cast<std::size_t>(num_tiles));
  AttendPart* parts = arena.Take<AttendPart>(static_cast<std::size_t>(num_parts));
  plan.part_sums = TakeSums(arena, plan.num_part_rows, shape.head_dim);
  plan.bf16_sums = TakeSums(arena, plan.num_rows, shape.head_dim);
  if (plan.any_encoded) {
    const auto values = static_cast<std::size_t>(plan.num_rows) * static_cast<std::size_t>(shape.head_dim);
    plan.transformed_queries = arena.Take<float>(values);
    plan.mean_terms = arena.Take<float>(values);
    plan.encoded_sums = TakeSums(arena, plan.num_rows, shape.head_dim);
    plan.inverse_outputs = arena.Take<float>(values);
  }
  plan.scratch_bytes = AttendScratchBytes(shape.head_dim);
  plan.scratch = arena.Take<std::byte>(plan.scratch_bytes * static_cast<std::size_t>(num_threads));
  if (tiles == nullptr) return plan;  // counting

  plan.tiles = {tiles, static_cast<std::size_t>(num_tiles)};
  plan.parts = {parts, static_cast<std::size_t>(num_parts)};
  PlanCursor next;
  ForEachTile(shape, params, unit_tokens, [&](const AttendTile& tile) { PlaceTile(params, unit_tokens, tile, plan, next); });
  return plan;
}

}  // namespace oscar::kernels
