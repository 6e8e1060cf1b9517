#include "src/kv/kernels/cuda/decode_plan.h"

#include <algorithm>

#include "src/base/check.h"

namespace oscar::kernels::cuda {

namespace {

// A window of 24 tiles that a CTA has for itself takes as long as four times its bytes of pages.
constexpr int kSpaceTileCost = 4;

// Of a fixed plan's items: few enough items that merging is cheap at 128K tokens, short enough that they fill the machine at 8K.
constexpr int kFixedPages = 64, kFixedTiles = 64;

// Makes the pairs of sequences i and num_code_sequences + i siblings.
void LinkSpaces(DecodePlan& plan, int num_code_sequences, int kv_heads) {
  const auto pair_of = [&](int sequence, const DecodeItem& item) { return static_cast<size_t>(sequence * kv_heads + item.head); };
  std::vector<const DecodeItem*> item_of_pair(static_cast<size_t>(2 * num_code_sequences * kv_heads));
  for (const DecodeItem& item : plan.items) {
    if (item.pair_num_slots > 0) item_of_pair[pair_of(item.sequence, item)] = &item;
  }
  const auto link = [&](DecodeItem& item) {
    const int other = item.sequence < num_code_sequences ? item.sequence + num_code_sequences : item.sequence - num_code_sequences;
    const DecodeItem* sibling = item_of_pair[pair_of(other, item)];
    OSCAR_CHECK(sibling != nullptr);
    item.sibling_first_slot = sibling->pair_first_slot;
    item.sibling_num_slots = sibling->pair_num_slots;
  };
  for (DecodeItem& item : plan.items) {
    if (item.pair_num_slots > 0) link(item);
  }
  for (DecodeStart& start : plan.starts) {
    if (start.has_first != 0) link(start.first);
  }
}

// Of the CTAs of a pair, those for its rows; 0: they would be too many for what the rows cost.
int CtasOfRows(const SequenceExtent& extent, const UnitBytes& bytes, int num_ctas) {
  const int64_t pages = kItemBytes + extent.num_code_pages * bytes.page, rows = kItemBytes + kSpaceTileCost * TilesOf(extent) * bytes.tile;
  const int64_t quarters = 4 * num_ctas * rows / (pages + rows);
  return quarters < 3 ? 0 : static_cast<int>(std::clamp<int64_t>((quarters + 2) / 4, 1, num_ctas - 1));
}

// The parts of one half of a pair: item `part` of `parts` at slot first_slot + part.
struct HalfPair {
  int sequence, head, first_slot, parts;
};
DecodeItem PartOf(const HalfPair& half, const SequenceExtent& extent, int part) {
  const int tiles = TilesOf(extent);
  const int page = ShareOf(extent.num_code_pages, part, half.parts), tile = ShareOf(tiles, part, half.parts);
  return {half.sequence, half.head, page, ShareOf(extent.num_code_pages, part + 1, half.parts) - page, tile,
          ShareOf(tiles, part + 1, half.parts) - tile, extent.num_rows, half.first_slot + part, half.first_slot, half.parts, 0, 0};
}

// Every pair has `ctas` CTAs, slots are CTAs. Empty: some pair is not for that.
DecodePlan PlanOwnCtas(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options, int ctas) {
  const int count = static_cast<int>(sequences.size());
  DecodePlan plan;
  plan.num_slots = options.num_ctas;
  plan.items.assign(static_cast<size_t>(plan.num_slots), DecodeItem{});
  plan.starts.resize(static_cast<size_t>(options.num_ctas));
  for (int sequence = 0; sequence < count; ++sequence) {
    const SequenceExtent& extent = sequences[static_cast<size_t>(sequence)];
    const int for_rows = CtasOfRows(extent, BytesOfUnits(options.head_dim), ctas);
    if (for_rows == 0) return {};
    // Half a page or a quarter of a tile per warp is enough work to be worth a CTA of its own.
    const int page_parts = std::clamp(2 * extent.num_code_pages / kLeastUnits, 1, ctas - for_rows);
    const int row_parts = std::clamp(4 * TilesOf(extent) / kLeastUnits, 1, for_rows);
    for (int head = 0; head < options.kv_heads; ++head) {
      const int first = (sequence * options.kv_heads + head) * ctas;
      for (int part = 0; part < page_parts + row_parts; ++part) {
        DecodeItem& item = plan.items[static_cast<size_t>(first + part)];
        item = part < page_parts ? PartOf({sequence, head, first, page_parts}, {extent.num_code_pages, 0}, part)
                                 : PartOf({count + sequence, head, first + page_parts, row_parts}, {0, extent.num_rows}, part - page_parts);
        plan.starts[static_cast<size_t>(first + part)].first = item;
        plan.starts[static_cast<size_t>(first + part)].has_first = 1;
      }
    }
    plan.bytes += options.kv_heads * PairBytes(extent, BytesOfUnits(options.head_dim));
  }
  return plan;
}

// Numbers of slots, those of a (sequence, KV head) together, for items in any order.
void NumberSlots(DecodePlan& plan, int num_sequences, int kv_heads) {
  const auto pair_of = [&](const DecodeItem& item) { return static_cast<size_t>(item.sequence * kv_heads + item.head); };
  const auto num_pairs = static_cast<size_t>(num_sequences * kv_heads);
  std::vector<int> num_slots(num_pairs), first_slot(num_pairs), used(num_pairs);
  for (const DecodeItem& item : plan.items) ++num_slots[pair_of(item)];
  for (size_t pair = 1; pair < num_pairs; ++pair) first_slot[pair] = first_slot[pair - 1] + num_slots[pair - 1];
  for (DecodeItem& item : plan.items) {
    const size_t pair = pair_of(item);
    item.pair_first_slot = first_slot[pair];
    item.pair_num_slots = num_slots[pair];
    item.slot = first_slot[pair] + used[pair]++;
  }
  plan.num_slots = static_cast<int>(plan.items.size());
}

// The plan with the items that have pages and rows cut in two, rows first: sequences become pages i and rows n + i. Items are in the
// order of CTAs.
DecodePlan SplitItems(const DecodePlan& whole, std::span<const SequenceExtent> sequences, int kv_heads) {
  const int count = static_cast<int>(sequences.size());
  DecodePlan plan;
  plan.bytes = whole.bytes;
  const auto add_halves = [&](const DecodeItem& item) {
    DecodeItem rows = item, pages = item;
    rows.sequence += count;
    rows.first_page = rows.num_pages = 0;
    pages.first_tile = pages.num_tiles = pages.num_rows = 0;
    if (rows.num_tiles > 0) plan.items.push_back(rows);
    // A half without anything is an item, too.
    const bool is_last = item.slot == item.pair_first_slot + item.pair_num_slots - 1;
    if (pages.num_pages > 0 || (is_last && sequences[static_cast<size_t>(item.sequence)].num_code_pages == 0)) plan.items.push_back(pages);
  };
  for (const DecodeStart& from : whole.starts) {
    DecodeStart start = {};
    start.next = static_cast<int>(plan.items.size()) + 1;
    if (from.has_first != 0) add_halves(from.first);
    for (int i = from.next; i < from.end; ++i) add_halves(whole.items[static_cast<size_t>(i)]);
    start.end = static_cast<int>(plan.items.size());
    start.has_first = start.end >= start.next ? 1 : 0;
    if (start.has_first == 0) start.next = start.end;
    plan.starts.push_back(start);
  }
  NumberSlots(plan, 2 * count, kv_heads);
  for (DecodeStart& start : plan.starts) {
    if (start.has_first != 0) start.first = plan.items[static_cast<size_t>(start.next - 1)];
  }
  return plan;
}

}  // namespace

DecodePlan PlanDecode(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options) {
  OSCAR_CHECK(options.kv_heads > 0 && options.num_ctas > 0);
  DecodePlan plan;
  DecodeBatch batch{};
  batch.extents = sequences.data();
  batch.num_sequences = static_cast<int>(sequences.size());
  batch.kv_heads = options.kv_heads;
  batch.bytes = BytesOfUnits(options.head_dim);
  batch.bytes.tile *= options.tile_cost;
  batch.num_ctas = options.num_ctas;
  std::vector<int64_t> starts = {0};
  for (const SequenceExtent& extent : sequences) {
    plan.bytes += options.kv_heads * PairBytes(extent, BytesOfUnits(options.head_dim));
    starts.push_back(starts.back() + options.kv_heads * PairLength(extent, batch.bytes));
  }
  batch.starts = starts.data();
  const bool all_equal =
      std::all_of(sequences.begin(), sequences.end(), [&](const SequenceExtent& s) {
        return s.num_code_pages == sequences[0].num_code_pages &&
               s.num_rows == sequences[0].num_rows;
      });
  batch.whole_splits = WholeSplits(all_equal, plan.bytes, batch.num_sequences * options.kv_heads,
                                   options.num_ctas, options.whole_splits_below_bytes);
  std::vector<DecodeCut> cuts;
  for (int cta = 0; cta <= options.num_ctas; ++cta) {
    cuts.push_back(sequences.empty() || batch.whole_splits != 0 ? DecodeCut{}
                                                                : CutOfCta(batch, cta));
  }
  plan.num_slots = MostDecodeItems(batch.num_sequences, options.kv_heads, options.num_ctas);
  plan.items.assign(static_cast<size_t>(plan.num_slots), DecodeItem{});
  plan.starts.resize(static_cast<size_t>(options.num_ctas));
  for (int cta = 0; cta < options.num_ctas; ++cta) {
    PlanCta(batch, cuts.data(), cta, plan.starts[static_cast<size_t>(cta)], plan.items.data());
  }
  return plan;
}

DecodePlan PlanFixed(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options, bool has_spaces) {
  const int count = static_cast<int>(sequences.size());
  DecodePlan plan;
  const auto add = [&](int sequence, int head, const SequenceExtent& extent) {
    const int parts = std::max({1, (extent.num_code_pages + kFixedPages - 1) / kFixedPages, (TilesOf(extent) + kFixedTiles - 1) / kFixedTiles});
    const HalfPair half = {sequence, head, static_cast<int>(plan.items.size()), parts};
    for (int part = 0; part < parts; ++part) plan.items.push_back(PartOf(half, extent, part));
  };
  for (int sequence = 0; sequence < count; ++sequence) {
    const SequenceExtent& extent = sequences[static_cast<size_t>(sequence)];
    for (int head = 0; head < options.kv_heads; ++head) {
      add(sequence, head, has_spaces ? SequenceExtent{extent.num_code_pages, 0} : extent);
      if (has_spaces) add(count + sequence, head, {0, extent.num_rows});
    }
    plan.bytes += options.kv_heads * PairBytes(extent, BytesOfUnits(options.head_dim));
  }
  plan.num_slots = static_cast<int>(plan.items.size());
  for (int cta = 0; cta < options.num_ctas; ++cta) {
    DecodeStart start = {};
    start.next = ShareOf(plan.num_slots, cta, options.num_ctas);
    start.end = ShareOf(plan.num_slots, cta + 1, options.num_ctas);
    start.has_first = start.next < start.end ? 1 : 0;
    if (start.has_first != 0) start.first = plan.items[static_cast<size_t>(start.next++)];
    plan.starts.push_back(start);
  }
  if (has_spaces) LinkSpaces(plan, count, options.kv_heads);
  return plan;
}

DecodePlan PlanSpaces(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options) {
  const int count = static_cast<int>(sequences.size()), num_pairs = count * options.kv_heads;
  DecodePlan plan;
  const int ctas = num_pairs > 0 ? options.num_ctas / num_pairs : 0;
  if (ctas >= 2 && 10 * ctas * num_pairs >= 9 * options.num_ctas) {
    int64_t longest = 0, sum = 0;
    for (const SequenceExtent& extent : sequences) {
      const int64_t length = PairLength(extent, BytesOfUnits(options.head_dim));
      longest = std::max(longest, length);
      sum += length;
    }
    if (4 * longest * count <= 5 * sum) plan = PlanOwnCtas(sequences, options, ctas);
  }
  if (plan.starts.empty()) {
    DecodePlanOptions with_rows = options;
    with_rows.tile_cost = kSpaceTileCost;
    plan = SplitItems(PlanDecode(sequences, with_rows), sequences, options.kv_heads);
  }
  LinkSpaces(plan, count, options.kv_heads);
  return plan;
}

}  // namespace oscar::kernels::cuda
