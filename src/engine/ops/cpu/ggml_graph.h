// GgmlGraph: one recording as a ggml graph: its nodes, which of them live in slots, and where the others lie in scratch.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <ggml-cpu.h>
#include <ggml.h>

#include "src/engine/ops/ops.h"

namespace oscar::engine {

class GgmlGraph {
 public:
  explicit GgmlGraph(const RecordingKey& key);
  ~GgmlGraph();
  GgmlGraph(const GgmlGraph&) = delete;
  GgmlGraph& operator=(const GgmlGraph&) = delete;

  const RecordingKey& key() const { return key_; }
  ggml_context* context() const { return context_; }
  // A leaf whose data is the slot's memory at each Compute.
  void AddInput(ggml_tensor* leaf, Slot slot) { slot_nodes_.emplace_back(leaf, slot); }
  // A node that writes to the slot; it and what it needs are computed in the order of these calls.
  void AddOutput(ggml_tensor* node, Slot slot);

  // Bytes that the nodes outside slots need together. No memory is shared among them: a recording is one layer, and the next
  // recording uses the same scratch again.
  size_t scratch_bytes() const;
  // Gives every node its place. Precondition: scratch holds scratch_bytes() and outlives the graph's use.
  void Place(std::byte* scratch, int num_threads, ggml_threadpool* threadpool);
  size_t work_bytes() const { return plan_.work_size; }
  ggml_status Compute(std::span<float* const> slots, std::byte* work);

 private:
  bool InSlot(const ggml_tensor* node) const;

  RecordingKey key_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_ = {};
  std::vector<std::pair<ggml_tensor*, Slot>> slot_nodes_;
  std::vector<ggml_tensor*> slot_views_;  // views of slot_nodes_, which follow them to new memory
};

}  // namespace oscar::engine
