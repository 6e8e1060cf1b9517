#include "src/kv/kernels/cuda/decode_plan.h"

#include <algorithm>

#include "oscar/kernels.h"
#include "src/base/check.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kRowsPerTile = 16;
// A cut that would leave fewer pages than this (one per warp) on one side moves to the end of the pair.
constexpr int kLeastPages = 16;
constexpr int kLeastTailPages = 32;
constexpr int kMostTilesTogether = 64;
constexpr int kMostTailItemsPerCta = 6;

struct Bytes {
  int64_t page, tile;
};
Bytes BytesOfUnits(int head_dim) { return {32 * head_dim + 512, 64 * head_dim}; }
int TilesOf(const SequenceExtent& extent) { return (extent.num_rows + kRowsPerTile - 1) / kRowsPerTile; }

// Lists the work pair by pair, tiles before pages, and cuts shares off one after the other.
class Cutter {
 public:
  Cutter(std::span<const SequenceExtent> sequences, int kv_heads, const Bytes& bytes, std::vector<DecodeItem>& items)
      : sequences_(sequences), kv_heads_(kv_heads), bytes_(bytes), items_(items) {}

  bool done() const { return sequence_ == static_cast<int>(sequences_.size()); }

  // Takes items of about `share` bytes, at least one; returns what was taken.
  int64_t Take(int64_t share) {
    int64_t taken = 0;
    bool any = false;
    while (!done()) {
      const SequenceExtent& extent = sequences_[sequence_];
      const int64_t left = share - taken;
      const int tiles_left = TilesOf(extent) - tile_, pages_left = extent.num_code_pages - page_;
      // A window's tiles stay together: there are few, and every warp takes some. Long runs of BF16 rows are cut like
      // pages.
      int tiles = tiles_left;
      if (tiles_left > kMostTilesTogether) {
        tiles = std::min<int>(tiles_left, std::max<int>(kLeastPages, static_cast<int>(left / bytes_.tile)));
        if (tiles_left - tiles < kLeastPages) tiles = tiles_left;
      }
      if (tiles < tiles_left) {
        if (any && left < kLeastPages * bytes_.tile) return taken;
        items_.push_back({sequence_, head_, page_, 0, tile_, tiles, extent.num_rows, 0, 0, 0, {}});
        tile_ += tiles;
        return taken + tiles * bytes_.tile;
      }
      int pages = static_cast<int>(
          std::clamp<int64_t>((left - tiles * bytes_.tile + bytes_.page / 2) / bytes_.page, 0, pages_left));
      if (pages_left - pages < kLeastPages) pages = pages_left;
      if (pages < pages_left && pages < kLeastPages) pages = any ? 0 : std::min(pages_left, kLeastPages);
      const int64_t size = tiles * bytes_.tile + pages * bytes_.page;
      if (any && (pages == 0 ? pages_left > 0 : size > left + kLeastPages * bytes_.page)) return taken;
      items_.push_back({sequence_, head_, page_, pages, tile_, tiles, extent.num_rows, 0, 0, 0, {}});
      any = true;
      taken += size;
      tile_ += tiles;
      page_ += pages;
      if (pages == pages_left) NextPair();
      if (taken + kLeastPages * bytes_.page / 2 >= share) return taken;
    }
    return taken;
  }

 private:
  void NextPair() {
    tile_ = page_ = 0;
    if (++head_ == kv_heads_) {
      head_ = 0;
      ++sequence_;
    }
  }

  std::span<const SequenceExtent> sequences_;
  const int kv_heads_;
  const Bytes bytes_;
  std::vector<DecodeItem>& items_;
  int sequence_ = 0, head_ = 0, page_ = 0, tile_ = 0;
};

void AssignSlots(std::vector<DecodeItem>& items) {
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin;
    while (end < items.size() && items[end].sequence == items[begin].sequence && items[end].head == items[begin].head)
      ++end;
    for (size_t i = begin; i < end; ++i) {
      items[i].slot = static_cast<int>(i);
      items[i].pair_first_slot = static_cast<int>(begin);
      items[i].pair_num_slots = static_cast<int>(end - begin);
    }
    begin = end;
  }
}

int Share(int count, int part, int parts) { return static_cast<int>(static_cast<int64_t>(count) * part / parts); }

// Few pairs of equal length: each in the same number of equal splits, one CTA a split, no second item anywhere.
void PlanWholeSplits(std::span<const SequenceExtent> sequences, int kv_heads, int splits,
                     std::vector<DecodeItem>& items, std::vector<std::vector<int>>& items_of_cta) {
  int cta = 0;
  for (int sequence = 0; sequence < static_cast<int>(sequences.size()); ++sequence) {
    const SequenceExtent& extent = sequences[sequence];
    const int tiles = TilesOf(extent);
    // Half a page or tile per warp is enough work to be worth a CTA of its own.
    const int parts = std::clamp((extent.num_code_pages + 2 * tiles) / (kLeastPages / 2), 1, splits);
    for (int head = 0; head < kv_heads; ++head, cta += splits) {
      for (int part = 0; part < parts; ++part) {
        const int page = Share(extent.num_code_pages, part, parts), tile = Share(tiles, part, parts);
        items_of_cta[cta + part].push_back(static_cast<int>(items.size()));
        items.push_back({sequence,
                         head,
                         page,
                         Share(extent.num_code_pages, part + 1, parts) - page,
                         tile,
                         Share(tiles, part + 1, parts) - tile,
                         extent.num_rows,
                         0,
                         0,
                         0,
                         {}});
      }
    }
  }
}

// Equal shares of the bytes for all CTAs, then small items to claim.
void PlanShares(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options, DecodePlan& plan,
                std::vector<std::vector<int>>& items_of_cta) {
  const Bytes bytes = BytesOfUnits(options.head_dim);
  Cutter cutter(sequences, options.kv_heads, bytes, plan.items);
  const int64_t tail =
      plan.bytes >= options.tail_from_bytes ? static_cast<int64_t>(plan.bytes * options.tail_share) : 0;
  int64_t done = 0;
  for (int cta = 0; cta < options.num_ctas && !cutter.done(); ++cta) {
    const int64_t until = (plan.bytes - tail) * (cta + 1) / options.num_ctas;
    const size_t before = plan.items.size();
    if (until > done) done += cutter.Take(until - done);
    for (size_t i = before; i < plan.items.size(); ++i) items_of_cta[cta].push_back(static_cast<int>(i));
  }
  plan.tail_first = static_cast<int>(plan.items.size());
  const int64_t piece =
      std::max<int64_t>(kLeastTailPages * bytes.page, tail / (kMostTailItemsPerCta * options.num_ctas));
  while (!cutter.done()) cutter.Take(piece);
  plan.tail_end = static_cast<int>(plan.items.size());
}

}  // namespace

SequenceExtent ExtentOfSequence(int num_tokens, int sink, int recent) {
  if (num_tokens <= 0) return {};
  const int encoded = std::max(0, FirstRecentPosition(num_tokens - 1, recent) - sink);
  return {encoded / kPageTokens, num_tokens - encoded};
}

DecodePlan PlanDecode(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options) {
  OSCAR_CHECK(options.kv_heads > 0 && options.num_ctas > 0);
  DecodePlan plan;
  const Bytes bytes = BytesOfUnits(options.head_dim);
  for (const SequenceExtent& extent : sequences) {
    plan.bytes += options.kv_heads * (extent.num_code_pages * bytes.page + TilesOf(extent) * bytes.tile);
  }
  std::vector<std::vector<int>> items_of_cta(options.num_ctas);
  const bool equal = std::all_of(sequences.begin(), sequences.end(), [&](const SequenceExtent& s) {
    return s.num_code_pages == sequences[0].num_code_pages && s.num_rows == sequences[0].num_rows;
  });
  const int pairs = static_cast<int>(sequences.size()) * options.kv_heads;
  const int splits = pairs > 0 ? options.num_ctas / pairs : 0;
  // Whole splits leave num_ctas % pairs CTAs idle, which is worth it up to a tenth.
  if (equal && splits >= 1 && plan.bytes < options.whole_splits_below_bytes &&
      10 * splits * pairs >= 9 * options.num_ctas) {
    PlanWholeSplits(sequences, options.kv_heads, splits, plan.items, items_of_cta);
  } else {
    PlanShares(sequences, options, plan, items_of_cta);
  }
  AssignSlots(plan.items);
  plan.num_slots = static_cast<int>(plan.items.size());
  // The list is in slot order; a CTA's items need not be neighbours in it, so each CTA gets its own run behind the
  // list.
  for (const std::vector<int>& own : items_of_cta) {
    DecodeStart start{};
    start.has_first = own.empty() ? 0 : 1;
    if (!own.empty()) start.first = plan.items[own.front()];
    start.next = start.end = static_cast<int>(plan.items.size());
    for (size_t i = 1; i < own.size(); ++i) plan.items.push_back(DecodeItem(plan.items[own[i]]));
    start.end = static_cast<int>(plan.items.size());
    plan.starts.push_back(start);
  }
  return plan;
}

}  // namespace oscar::kernels::cuda
