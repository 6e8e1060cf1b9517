#include "src/engine/ops/cpu/ggml_graph.h"

#include <algorithm>

#include "src/base/check.h"

namespace oscar::engine {
namespace {

// More than the nodes and leaves of one layer (about 30).
constexpr size_t kMaxNodes = 64;
constexpr size_t kNodeAlignment = 64;

size_t PaddedBytes(const ggml_tensor* node) { return GGML_PAD(ggml_nbytes(node), kNodeAlignment); }

}  // namespace

GgmlGraph::GgmlGraph(const RecordingKey& key) : key_(key) {
  const size_t bytes = 2 * kMaxNodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(kMaxNodes, /*grads=*/false);
  context_ = ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true});
  OSCAR_CHECK(context_ != nullptr);
  graph_ = ggml_new_graph_custom(context_, kMaxNodes, /*grads=*/false);
}

GgmlGraph::~GgmlGraph() { ggml_free(context_); }

void GgmlGraph::AddOutput(ggml_tensor* node, Slot slot) {
  OSCAR_CHECK_MSG(node->op != GGML_OP_NONE && node->view_src == nullptr, "only the result of a verb can be stored");
  slot_nodes_.emplace_back(node, slot);
  ggml_build_forward_expand(graph_, node);
}

bool GgmlGraph::InSlot(const ggml_tensor* node) const {
  return std::ranges::any_of(slot_nodes_, [&](const auto& entry) { return entry.first == node; });
}

size_t GgmlGraph::scratch_bytes() const {
  size_t bytes = 0;
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph_, i);
    if (node->view_src == nullptr && !InSlot(node)) bytes += PaddedBytes(node);
  }
  return bytes;
}

void GgmlGraph::Place(std::byte* scratch, int num_threads, ggml_threadpool* threadpool) {
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    ggml_tensor* node = ggml_graph_node(graph_, i);
    if (InSlot(node)) continue;
    if (node->view_src != nullptr && InSlot(node->view_src)) {
      slot_views_.push_back(node);
    } else if (node->view_src != nullptr) {
      OSCAR_CHECK(node->view_src->data != nullptr);
      node->data = static_cast<char*>(node->view_src->data) + node->view_offs;
    } else {
      node->data = scratch;
      scratch += PaddedBytes(node);
    }
  }
  plan_ = ggml_graph_plan(graph_, num_threads, threadpool);
}

ggml_status GgmlGraph::Compute(std::span<float* const> slots, std::byte* work) {
  for (const auto& [node, slot] : slot_nodes_) {
    node->data = slots[static_cast<size_t>(slot)];
    OSCAR_DCHECK(node->data != nullptr);
  }
  for (ggml_tensor* view : slot_views_) view->data = static_cast<char*>(view->view_src->data) + view->view_offs;
  plan_.work_data = reinterpret_cast<uint8_t*>(work);
  return ggml_graph_compute(graph_, &plan_);
}

}  // namespace oscar::engine
