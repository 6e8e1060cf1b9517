// GgmlOps: Ops on ggml's CPU code. Each verb adds a node to the recording; recordings are kept and submitted again.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/buffer.h"
#include "src/engine/ops/cpu/ggml_executor.h"
#include "src/engine/ops/cpu/ggml_graph.h"
#include "src/engine/ops/cpu/row_product.h"
#include "src/engine/ops/ops.h"

namespace oscar::engine {

class GgmlOps final : public Ops {
 public:
  GgmlOps(int num_threads, int max_tokens, BatchRounding rounding = BatchRounding::kFree);

  Executor& executor() override { return executor_; }
  Status Place(const Weight& weight) override;  // ggml reads the mapped file
  Result<float*> AllocateSlots(std::size_t num_floats) override;
  bool slots_on_host() const override { return true; }
  Result<std::unique_ptr<KvCache>> NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) override;
  Result<MomentAccumulator> NewMoments(const KvShape& shape, const OscarFitOptions& options) override;
  Result<BalancedMoments> NewBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens) override;
  Status ReadSlots(const float* values, std::span<float> out) override;
  void Bind(Slot slot, float* data) override { slots_[static_cast<size_t>(slot)] = data; }
  void SetInputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                 std::span<const int32_t> output_rows) override;
  bool Begin(const RecordingKey& key) override;
  Status Submit() override;

  Tensor Load(Slot slot, int width) override;
  void Store(Tensor tensor, Slot slot) override { graph_->AddOutput(tensor.node, slot); }
  Tensor Embed(const Weight& table) override;
  Tensor MatMul(const Weight& matrix, Tensor x) override;
  Tensor AddBias(Tensor x, const Weight& bias) override;
  Tensor Add(Tensor a, Tensor b) override;
  Tensor RmsNorm(Tensor x, const Weight& gain, float epsilon) override;
  Tensor Rope(Tensor x, int head_dim, const RopeParams& params, const Weight* factors) override;
  Tensor SwiGlu(Tensor gate, Tensor up) override;
  Tensor Experts(const ExpertWeights& weights, Tensor x) override;
  Tensor GatherOutputRows(Tensor x) override;

 private:
  // The recordings of one step shape, by segment.
  struct KeptShape {
    int num_tokens = 0;
    int num_output_rows = 0;
    bool plain_products = false;
    std::vector<std::unique_ptr<GgmlGraph>> graphs;
  };

  KeptShape& ShapeOf(const RecordingKey& key);
  // Places the graph just recorded; grows scratch, which drops all other recordings.
  Status PlaceNewGraph();
  ggml_context* context() const { return graph_->context(); }
  // The product of one row, of the few of a small batch with weights in blocks of 32, or of kInvariant, where we have one of our own.
  ggml_tensor* MatMulRows(const Weight& matrix, const RowProduct& product, ggml_tensor* x);
  // The product of many rows (tiled_product.h).
  ggml_tensor* MatMulTiled(const Weight& matrix, ggml_tensor* x);
  // Other products of kInvariant: every element is one dot product of ggml's, as a step of one row has it.
  ggml_tensor* MatMulByDots(const Weight& matrix, ggml_tensor* x);
  ggml_tensor* IndexLeaf(std::vector<int32_t>& values, int count);

  GgmlExecutor executor_;
  std::array<float*, kNumSlots> slots_ = {};
  std::vector<int32_t> tokens_, positions_, output_rows_;  // [max_tokens]: graphs point into them
  base::Buffer scratch_, work_;
  std::list<base::Buffer> slot_memory_;
  std::list<KeptShape> shapes_;  // most recently used first
  GgmlGraph* graph_ = nullptr;   // the one begun last
  bool is_new_ = false;
  struct PreparedRows {
    const ggml_tensor* x = nullptr;
    const RowProduct* product = nullptr;
    ggml_tensor* prepared = nullptr;
  };
  std::vector<PreparedRows> prepared_rows_;                  // of the recording
  std::pair<ggml_tensor*, ggml_tensor*> tiled_activations_;  // of the recording: the x that came last, and x as MultiplyTiled takes it, with its panels behind
  const BatchRounding rounding_;
  bool plain_products_ = false;  // ggml's alone, for the cache `f16`
  std::pair<ggml_tensor*, ggml_tensor*> dot_activations_;  // of the recording: x, and x as the dot products of `dot_type_` take it
  ggml_type dot_type_ = GGML_TYPE_F32;
};

}  // namespace oscar::engine
