// Who does what in one decode attention launch (gpu.md 5.11): pure host arithmetic over lengths, no
// CUDA. The kernels only follow the list. Same input, same plan; a slot belongs to an item, so
// results do not depend on who ran it. The plan kernel (plan_kernel.h) makes the same list on the
// device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/kernels/cuda/decode_params.h"
#include "src/kv/kernels/cuda/decode_plan_cuts.h"

namespace oscar::kernels::cuda {

struct DecodePlanOptions {
  int kv_heads = 0;
  int head_dim = 0;
  int num_ctas = 0;
  // Below this, equal sequences whose number divides the CTAs well get equal splits of one CTA
  // each.
  int64_t whole_splits_below_bytes = 300'000'000;
  // What a tile costs in bytes of pages: 1 by its own bytes. A window of rows by itself is bound by latency.
  int tile_cost = 1;
};

struct DecodePlan {
  std::vector<DecodeStart> starts;  // [num_ctas]
  std::vector<DecodeItem>
      items;  // [num_slots], by slot; pair_num_slots is 0 where nobody has the slot
  int num_slots = 0;
  int64_t bytes = 0;  // that the launch reads from the pools
};
DecodePlan PlanDecode(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options);

// The plan of sequences in separate spaces (JoinParams): their pages as sequences [0, n), their BF16 rows as [n, 2 n), linked as siblings.
// A short launch, or one of a single long sequence, gives each (sequence, KV head) CTAs of its own, some for the pages and some for the
// rows; else the plan is that of PlanDecode with every item in two, one after the other.
DecodePlan PlanSpaces(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options);

// A plan in which the items of a sequence depend on its own extent alone (gpu.md 5.11, --deterministic), so that its result has the same
// bits in every batch; `has_spaces` as PlanSpaces, else as PlanDecode.
DecodePlan PlanFixed(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options, bool has_spaces);

}  // namespace oscar::kernels::cuda
