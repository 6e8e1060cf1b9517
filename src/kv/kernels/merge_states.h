// The algebra of partial softmax sums: parts of one row over disjoint tokens joined in a fixed order (method.md 6.2). The
// public form with natural-log states is MergeStates of oscar/kernels.h.
#pragma once

#include "src/kv/kernels/params.h"

namespace oscar::kernels {

// total += part for `num_rows` rows of width d, where part is stored densely ([num_rows, d]) as total is. Parts without
// tokens (max = -inf) do not count.
void AddPartialSums(const PartialSums& part, int num_rows, int d, const PartialSums& total);

// Starts with no tokens.
void ClearPartialSums(int num_rows, int d, const PartialSums& total);

}  // namespace oscar::kernels
