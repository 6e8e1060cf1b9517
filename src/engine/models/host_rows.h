// HostRows: an observer's rows, copied from the device where the model computes.
#pragma once

#include <vector>

#include "src/engine/models/model.h"
#include "src/engine/ops/ops.h"

namespace oscar::engine {

// Hands the rows on to `observer`, which sees host memory that lasts as long as the call. Rows must be packed.
class HostRows final : public AttentionObserver {
 public:
  HostRows(Ops& ops, AttentionObserver& observer) : ops_(ops), observer_(observer) {}

  Status Observe(int layer, RowsView<const float> queries, RowsView<const float> keys, RowsView<const float> values) override;
  Status ObserveAttention(int layer, RowsView<const float> attention) override;
  Status ObserveHidden(int layer, RowsView<const float> hidden) override;

 private:
  Result<RowsView<const float>> Copy(const RowsView<const float>& rows, std::vector<float>& to);

  Ops& ops_;
  AttentionObserver& observer_;
  std::vector<float> queries_, keys_, values_;
};

}  // namespace oscar::engine
