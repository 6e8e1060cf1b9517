#include "src/kv/kernels/cuda/decode_plan.h"

#include <algorithm>

#include "oscar/kernels.h"
#include "src/base/check.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kRowsPerTile = 16;
// A cut that would leave fewer units than this (one per warp) on one side moves to the end of the segment.
constexpr int kLeastUnits = 16;
constexpr int kLeastTailPages = 32;
constexpr int kMostTailItemsPerCta = 6;

struct Segment {
  int sequence, head;
  PartKind kind;
  int num_units;
  int64_t unit_bytes;
};

std::vector<Segment> ListSegments(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options) {
  const int64_t page_bytes = 32 * options.head_dim + 512, tile_bytes = 64 * options.head_dim;
  std::vector<Segment> segments;
  for (int sequence = 0; sequence < static_cast<int>(sequences.size()); ++sequence) {
    const int tiles = (sequences[sequence].num_rows + kRowsPerTile - 1) / kRowsPerTile;
    for (int head = 0; head < options.kv_heads; ++head) {
      if (sequences[sequence].num_code_pages > 0) {
        segments.push_back({sequence, head, PartKind::kEncoded, sequences[sequence].num_code_pages, page_bytes});
      }
      // A padded row keeps one empty segment: somebody must write its zeros.
      if (tiles > 0 || sequences[sequence].num_code_pages == 0) {
        segments.push_back({sequence, head, PartKind::kRows, tiles, tile_bytes});
      }
    }
  }
  return segments;
}

// Appends items in segment order while shares are cut off one after the other.
class Cutter {
 public:
  Cutter(std::span<const Segment> segments, std::vector<DecodeItem>& items) : segments_(segments), items_(items) {}

  bool done() const { return segment_ == segments_.size(); }

  // Takes about `bytes` (at least one unit or segment); a rest or a start shorter than kLeastUnits goes with its neighbour.
  void Take(int64_t bytes) {
    bool taken = false;
    while (!done()) {
      const Segment& segment = segments_[segment_];
      const int left = segment.num_units - unit_;
      int units = static_cast<int>(std::clamp<int64_t>((bytes + segment.unit_bytes / 2) / segment.unit_bytes, 0, left));
      if (left - units < kLeastUnits) units = (units * 2 >= left || !taken) ? left : 0;
      if (units < left && units < kLeastUnits) units = taken ? 0 : std::min(left, kLeastUnits);
      if (units == 0 && left > 0) return;
      items_.push_back({segment.sequence, segment.head, segment.kind, unit_, units, 0, 0, 0});
      taken = true;
      bytes -= units * segment.unit_bytes;
      unit_ += units;
      if (unit_ < segment.num_units) return;
      ++segment_;
      unit_ = 0;
      if (bytes <= 0) return;
    }
  }

 private:
  std::span<const Segment> segments_;
  std::vector<DecodeItem>& items_;
  size_t segment_ = 0;
  int unit_ = 0;
};

void AssignSlots(std::vector<DecodeItem>& items) {
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin;
    while (end < items.size() && items[end].sequence == items[begin].sequence && items[end].head == items[begin].head) ++end;
    for (size_t i = begin; i < end; ++i) {
      items[i].slot = static_cast<int>(i);
      items[i].pair_first_slot = static_cast<int>(begin);
      items[i].pair_num_slots = static_cast<int>(end - begin);
    }
    begin = end;
  }
}

// Few pairs: every pair's INT2 pages in equal splits of one CTA each, the BF16 windows on the CTAs that are left over.
// Returns the number of leading CTAs per item, or false when no CTAs are left for the windows.
bool PlanWholeSplits(std::span<const Segment> segments, int pairs, int num_ctas, DecodePlan& plan,
                     std::vector<std::vector<int>>& items_of_cta) {
  if (pairs == 0 || pairs > num_ctas / 2) return false;
  const bool windows = std::any_of(segments.begin(), segments.end(), [](const Segment& s) { return s.kind == PartKind::kRows; });
  const bool codes = std::any_of(segments.begin(), segments.end(), [](const Segment& s) { return s.kind == PartKind::kEncoded; });
  if (!codes) return false;
  int splits = num_ctas / pairs;
  int left_over = num_ctas - splits * pairs;
  if (windows && left_over * 2 < pairs) return false;
  int cta = 0, window_cta = 0;
  for (const Segment& segment : segments) {
    if (segment.kind == PartKind::kRows) {
      items_of_cta[num_ctas - left_over + window_cta++ % left_over].push_back(static_cast<int>(plan.items.size()));
      plan.items.push_back({segment.sequence, segment.head, segment.kind, 0, segment.num_units, 0, 0, 0});
      continue;
    }
    const int parts = std::min(splits, std::max(1, segment.num_units / kLeastUnits * 2));
    for (int part = 0; part < parts; ++part) {
      const int first = static_cast<int>(static_cast<int64_t>(segment.num_units) * part / parts);
      const int last = static_cast<int>(static_cast<int64_t>(segment.num_units) * (part + 1) / parts);
      items_of_cta[cta + part].push_back(static_cast<int>(plan.items.size()));
      plan.items.push_back({segment.sequence, segment.head, segment.kind, first, last - first, 0, 0, 0});
    }
    cta += splits;
  }
  return true;
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
  const std::vector<Segment> segments = ListSegments(sequences, options);
  for (const Segment& segment : segments) plan.bytes += segment.num_units * segment.unit_bytes;

  std::vector<std::vector<int>> items_of_cta(options.num_ctas);
  const bool equal = std::all_of(sequences.begin(), sequences.end(), [&](const SequenceExtent& s) {
    return s.num_code_pages == sequences[0].num_code_pages;
  });
  const int pairs = static_cast<int>(sequences.size()) * options.kv_heads;
  if (!equal || !PlanWholeSplits(segments, pairs, options.num_ctas, plan, items_of_cta)) {
    plan.items.clear();
    Cutter cutter(segments, plan.items);
    const int64_t tail = plan.bytes >= options.tail_from_bytes ? static_cast<int64_t>(plan.bytes * options.tail_share) : 0;
    int64_t done = 0;
    for (int cta = 0; cta < options.num_ctas && !cutter.done(); ++cta) {
      const int64_t until = (plan.bytes - tail) * (cta + 1) / options.num_ctas;
      const size_t before = plan.items.size();
      if (until > done || cta + 1 == options.num_ctas) cutter.Take(std::max<int64_t>(until - done, 1));
      for (size_t i = before; i < plan.items.size(); ++i) {
        items_of_cta[cta].push_back(static_cast<int>(i));
        const bool encoded = plan.items[i].kind == PartKind::kEncoded;
        done += static_cast<int64_t>(plan.items[i].num_units) *
                (encoded ? 32 * options.head_dim + 512 : 64 * options.head_dim);
      }
    }
    plan.tail_first = static_cast<int>(plan.items.size());
    const int64_t page_bytes = 32 * options.head_dim + 512;
    const int64_t piece = std::max<int64_t>(kLeastTailPages * page_bytes, tail / (kMostTailItemsPerCta * options.num_ctas));
    while (!cutter.done()) cutter.Take(piece);
    plan.tail_end = static_cast<int>(plan.items.size());
  }
  AssignSlots(plan.items);
  plan.num_slots = static_cast<int>(plan.items.size());
  // The list is in slot order; a CTA's items need not be neighbours in it, so each CTA gets its own run behind the list.
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
