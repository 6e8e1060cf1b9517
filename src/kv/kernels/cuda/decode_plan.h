// Who does what in one decode attention launch (gpu.md 5.11): pure host arithmetic over lengths, no CUDA. The kernels
// only follow the list. Same input, same plan; a slot belongs to an item, so results do not depend on who ran it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/kernels/cuda/decode_params.h"

namespace oscar::kernels::cuda {

struct SequenceExtent {
  int num_code_pages = 0;
  int num_rows = 0;  // BF16 rows
};
// By the tier rule for a sequence of num_tokens tokens (its newest is the query).
SequenceExtent ExtentOfSequence(int num_tokens, int sink, int recent);

struct DecodePlanOptions {
  int kv_heads = 0;
  int head_dim = 0;
  int num_ctas = 0;
  // Share of the bytes that is claimed dynamically, when there are at least tail_from_bytes.
  double tail_share = 0.0;
  int64_t tail_from_bytes = 200'000'000;
  // Below this, equal sequences whose number divides the CTAs well get equal splits of one CTA each.
  int64_t whole_splits_below_bytes = 300'000'000;
};

struct DecodePlan {
  std::vector<DecodeStart> starts;  // [num_ctas]
  std::vector<DecodeItem> items;
  int tail_first = 0;
  int tail_end = 0;
  int num_slots = 0;
  int64_t bytes = 0;  // that the launch reads from the pools
};
DecodePlan PlanDecode(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options);

}  // namespace oscar::kernels::cuda
