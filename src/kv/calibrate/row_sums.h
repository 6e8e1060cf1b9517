// Sums over rows that are not in the memory of this process. Accumulators that have one of these hand it their rows and take the sums
// back at the end of a pass. Private to src/kv/calibrate.
#pragma once

#include <cstdint>
#include <span>

#include "oscar/calibrate.h"

namespace oscar::calibrate {

// Rows of some tokens of one layer.
struct LayerRows {
  RowsView<const float> queries, keys, values;
  LayerRows Slice(int first, int count) const {
    return {queries.Slice(first, count), keys.Slice(first, count), values.Slice(first, count)};
  }
};

class RowSums {
 public:
  virtual ~RowSums() = default;
  // As CheckFinite of captured_rows.h, of all three.
  virtual Status CheckFinite(int layer, const LayerRows& rows, int64_t first_token) = 0;
};

class MomentSums : public RowSums {
 public:
  // Rows of the current pass, behind those before.
  virtual Status Add(const MomentAccumulator::Impl& impl, int layer, const LayerRows& rows) = 0;
  virtual Status AddOutputs(int layer, RowsView<const float> outputs, int64_t first_token) = 0;
  // The query moments as they stand are the early ones.
  virtual Status KeepEarlyQueries(int layer) = 0;
  // At the end of a pass: its sums into impl.
  virtual Status Collect(MomentAccumulator::Impl& impl) = 0;
  // The score metrics of impl are known now.
  virtual Status StartSecondPass(const MomentAccumulator::Impl& impl) = 0;
};

class BalancedSums : public RowSums {
 public:
  virtual Status Add(const BalancedMoments::Impl& impl, int layer, int first_position, const LayerRows& rows) = 0;
  virtual Status Collect(BalancedMoments::Impl& impl) = 0;
  // The means and score metrics of impl are known now.
  virtual Status StartSecondPass(const BalancedMoments::Impl& impl) = 0;
  // One row, to this process.
  virtual Status ReadRow(const float* row, std::span<float> out) = 0;
};

}  // namespace oscar::calibrate
