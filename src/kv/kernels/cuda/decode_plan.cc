#include "src/kv/kernels/cuda/decode_plan.h"

#include <algorithm>

#include "src/base/check.h"

namespace oscar::kernels::cuda {

DecodePlan PlanDecode(std::span<const SequenceExtent> sequences, const DecodePlanOptions& options) {
  OSCAR_CHECK(options.kv_heads > 0 && options.num_ctas > 0);
  DecodePlan plan;
  DecodeBatch batch{};
  batch.extents = sequences.data();
  batch.num_sequences = static_cast<int>(sequences.size());
  batch.kv_heads = options.kv_heads;
  batch.bytes = BytesOfUnits(options.head_dim);
  batch.num_ctas = options.num_ctas;
  std::vector<int64_t> starts = {0};
  for (const SequenceExtent& extent : sequences) {
    plan.bytes += options.kv_heads * PairBytes(extent, batch.bytes);
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

}  // namespace oscar::kernels::cuda
