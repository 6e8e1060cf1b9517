// The arithmetic of decode plans (gpu.md 5.11), for the host and for the plan kernel: where the
// work of one CTA ends and that of the next begins, and the items between two such cuts. Each CTA
// is worked out by itself, from its number alone.
//
// The work is a line: the pairs (sequence, KV head) in order, each as long as what it costs, its
// tiles of BF16 rows before its INT2 pages. Cuts at equal distances are moved a little, so that no
// CTA gets a sliver of a pair.
#pragma once

#include <cstdint>

#include "oscar/kernels.h"
#include "src/kv/kernels/cuda/decode_params.h"

#ifdef __CUDACC__
#define OSCAR_HOST_DEVICE __host__ __device__
#else
#define OSCAR_HOST_DEVICE
#endif

namespace oscar::kernels::cuda {

inline constexpr int kRowsPerTile = 16;
// Of pages, and of tiles of long runs of rows: one per warp. No item is smaller where its pair has
// more.
inline constexpr int kLeastUnits = 16;
// A window's tiles stay together: there are few, and every warp takes some.
inline constexpr int kMostTilesTogether = 64;
// What an item costs beside its bytes, in bytes: its merges stop the warps for about a microsecond.
inline constexpr int64_t kItemBytes = 32'768;

struct SequenceExtent {
  int num_code_pages = 0;
  int num_rows = 0;  // BF16 rows
};

// By the tier rule for a sequence of num_tokens tokens (its newest is the query).
OSCAR_HOST_DEVICE constexpr SequenceExtent ExtentOfSequence(int num_tokens, int sink, int recent) {
  if (num_tokens <= 0) return {};
  const int encoded = FirstRecentPosition(num_tokens - 1, recent) - sink;
  return encoded > 0 ? SequenceExtent{encoded / kPageTokens, num_tokens - encoded}
                     : SequenceExtent{0, num_tokens};
}

OSCAR_HOST_DEVICE constexpr int TilesOf(const SequenceExtent& extent) {
  return (extent.num_rows + kRowsPerTile - 1) / kRowsPerTile;
}

struct UnitBytes {
  int64_t page, tile;
};
OSCAR_HOST_DEVICE constexpr UnitBytes BytesOfUnits(int head_dim) {
  return {32 * head_dim + 512, 64 * head_dim};
}

// A batch to plan. starts: [num_sequences + 1], where the pairs of a sequence start on the line;
// see PairLength.
struct DecodeBatch {
  const SequenceExtent* extents;
  const int64_t* starts;
  int num_sequences;
  int kv_heads;
  UnitBytes bytes;
  int num_ctas;
  int whole_splits;  // not 0: every pair is cut in at most that many equal parts, one CTA each
};

OSCAR_HOST_DEVICE constexpr int64_t PairBytes(const SequenceExtent& extent,
                                              const UnitBytes& bytes) {
  return extent.num_code_pages * bytes.page + TilesOf(extent) * bytes.tile;
}
OSCAR_HOST_DEVICE constexpr int64_t PairLength(const SequenceExtent& extent,
                                               const UnitBytes& bytes) {
  return kItemBytes + PairBytes(extent, bytes);
}

// Whole splits suit few pairs of equal length: no CTA has a second item. They leave num_ctas %
// pairs CTAs idle, which is worth it up to a tenth and for a launch of few bytes. 0: cut the line
// instead.
OSCAR_HOST_DEVICE constexpr int WholeSplits(bool all_equal, int64_t bytes, int num_pairs,
                                            int num_ctas, int64_t most_bytes) {
  const int splits = num_pairs > 0 ? num_ctas / num_pairs : 0;
  return all_equal && bytes < most_bytes && 10 * splits * num_pairs >= 9 * num_ctas ? splits : 0;
}

// A place between two units of a pair; tile = page = 0: where the pair begins.
struct DecodeCut {
  int pair, tile, page;
};

// `units` of a run to the left of a cut, moved so that neither side keeps a sliver.
OSCAR_HOST_DEVICE constexpr int WithoutSlivers(int units, int run) {
  if (units < kLeastUnits) units = 2 * units < kLeastUnits ? 0 : kLeastUnits;
  if (run - units < kLeastUnits) units = 2 * (run - units) < kLeastUnits ? run : run - kLeastUnits;
  return units < 0 ? 0 : (units > run ? run : units);
}

// Where CTA `cta` begins; monotonic in cta. Without whole splits only.
OSCAR_HOST_DEVICE inline DecodeCut CutOfCta(const DecodeBatch& batch, int cta) {
  const int64_t total = batch.starts[batch.num_sequences];
  if (cta >= batch.num_ctas) return {batch.num_sequences * batch.kv_heads, 0, 0};
  const int64_t at = total * cta / batch.num_ctas;
  int sequence = 0;
  for (int end = batch.num_sequences - 1; sequence < end;) {
    const int middle = (sequence + end + 1) / 2;
    if (batch.starts[middle] <= at) {
      sequence = middle;
    } else {
      end = middle - 1;
    }
  }
  const SequenceExtent& extent = batch.extents[sequence];
  const int64_t length = PairLength(extent, batch.bytes), inside = at - batch.starts[sequence];
  const int pair = sequence * batch.kv_heads + static_cast<int>(inside / length);
  int64_t left = inside % length - kItemBytes;
  if (left <= 0) return {pair, 0, 0};
  const int tiles = TilesOf(extent);
  const int64_t tile_bytes = tiles * batch.bytes.tile;
  if (left < tile_bytes) {
    int tile = static_cast<int>((left + batch.bytes.tile / 2) / batch.bytes.tile);
    tile =
        tiles <= kMostTilesTogether ? (2 * tile < tiles ? 0 : tiles) : WithoutSlivers(tile, tiles);
    return tile < tiles || extent.num_code_pages > 0 ? DecodeCut{pair, tile, 0}
                                                     : DecodeCut{pair + 1, 0, 0};
  }
  const int page = WithoutSlivers(
      static_cast<int>((left - tile_bytes + batch.bytes.page / 2) / batch.bytes.page),
      extent.num_code_pages);
  return page < extent.num_code_pages ? DecodeCut{pair, tiles, page} : DecodeCut{pair + 1, 0, 0};
}

// The last pair of which CTA `cta` has a part; before its first one if it has none.
OSCAR_HOST_DEVICE constexpr int LastPairBefore(const DecodeCut& end) {
  return end.tile == 0 && end.page == 0 ? end.pair - 1 : end.pair;
}

OSCAR_HOST_DEVICE constexpr int ShareOf(int count, int part, int parts) {
  return static_cast<int>(static_cast<int64_t>(count) * part / parts);
}

// With whole splits: the one item of a CTA. False when it has none.
OSCAR_HOST_DEVICE inline bool WholeSplitItem(const DecodeBatch& batch, int cta, DecodeItem& item) {
  const int pair = cta / batch.whole_splits, part = cta % batch.whole_splits;
  if (pair >= batch.num_sequences * batch.kv_heads) return false;
  const int sequence = pair / batch.kv_heads;
  const SequenceExtent& extent = batch.extents[sequence];
  const int tiles = TilesOf(extent), units = extent.num_code_pages + 2 * tiles;
  // Half a page or tile per warp is enough work to be worth a CTA of its own.
  int parts = 2 * units / kLeastUnits;
  parts = parts < 1 ? 1 : (parts > batch.whole_splits ? batch.whole_splits : parts);
  if (part >= parts) return false;
  const int page = ShareOf(extent.num_code_pages, part, parts), tile = ShareOf(tiles, part, parts);
  item = {sequence,
          pair % batch.kv_heads,
          page,
          ShareOf(extent.num_code_pages, part + 1, parts) - page,
          tile,
          ShareOf(tiles, part + 1, parts) - tile,
          extent.num_rows,
          cta,
          pair * batch.whole_splits,
          parts,
          0,
          0};
  return true;
}

// The part of `pair` between the cuts of CTA `cta`. cuts: [num_ctas + 1]. Its slot is cta + pair,
// which no other item has.
OSCAR_HOST_DEVICE inline DecodeItem ItemBetweenCuts(const DecodeBatch& batch, const DecodeCut* cuts,
                                                    int cta, int pair) {
  const int sequence = pair / batch.kv_heads;
  const SequenceExtent& extent = batch.extents[sequence];
  const DecodeCut begin = cuts[cta].pair == pair ? cuts[cta] : DecodeCut{pair, 0, 0};
  const DecodeCut end = cuts[cta + 1].pair == pair
                            ? cuts[cta + 1]
                            : DecodeCut{pair, TilesOf(extent), extent.num_code_pages};
  // The pair belongs to the CTAs from the one that has its beginning to the one that has its end.
  int first = cta, last = cta;
  while (cuts[first].pair == pair && (cuts[first].tile != 0 || cuts[first].page != 0)) --first;
  while (last + 1 < batch.num_ctas && cuts[last + 1].pair == pair &&
         (cuts[last + 1].tile != 0 || cuts[last + 1].page != 0))
    ++last;
  return {sequence,
          pair % batch.kv_heads,
          begin.page,
          end.page - begin.page,
          begin.tile,
          end.tile - begin.tile,
          extent.num_rows,
          cta + pair,
          first + pair,
          last - first + 1,
          0,
          0};
}

// Slots and entries of the list of items: an upper bound that depends on the size of the batch
// alone.
OSCAR_HOST_DEVICE constexpr int MostDecodeItems(int num_sequences, int kv_heads, int num_ctas) {
  return num_ctas + num_sequences * kv_heads;
}

// Writes the start of one CTA and its items, items[slot]. cuts: [num_ctas + 1], unused with whole
// splits.
OSCAR_HOST_DEVICE inline void PlanCta(const DecodeBatch& batch, const DecodeCut* cuts, int cta,
                                      DecodeStart& start, DecodeItem* items) {
  start = {};
  if (batch.whole_splits != 0) {
    DecodeItem item;
    if (!WholeSplitItem(batch, cta, item)) return;
    items[item.slot] = item;
    start.first = item;
    start.has_first = 1;
    return;
  }
  const int first = cuts[cta].pair, last = LastPairBefore(cuts[cta + 1]);
  for (int pair = first; pair <= last; ++pair) {
    const DecodeItem item = ItemBetweenCuts(batch, cuts, cta, pair);
    items[item.slot] = item;
    if (pair == first) start.first = item;
  }
  start.has_first = first <= last ? 1 : 0;
  start.next = cta + first + 1;
  start.end = first <= last ? cta + last + 1 : start.next;
}

}  // namespace oscar::kernels::cuda
