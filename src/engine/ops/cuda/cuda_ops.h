// CudaOps: Ops on a CUDA device. A recording is a list of nodes; Submit joins what one kernel can do (a product with its bias
// and residual, gate and up with SwiGLU, Q, K and V) and launches the rest in order. Recordings of few rows become CUDA graphs,
// kept by shape. Matrices are bf16, everything else f32.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/engine/ops/cpu/ggml_executor.h"
#include "src/engine/ops/cuda/expert_kernels.h"
#include "src/engine/ops/cuda/token_draw.h"
#include "src/engine/ops/ops.h"
#include "src/base/cuda_memory.h"

namespace oscar::engine {

class CudaOps final : public Ops {
 public:
  static constexpr std::size_t kLibraryWorkspace = std::size_t{32} << 20;
  static constexpr int64_t kPlacedAtOnce = int64_t{16} << 20;  // values of a matrix on their way to the device

  static Result<std::unique_ptr<Ops>> Create(int num_threads, int max_tokens, BatchRounding rounding, WeightPrecision precision);
  ~CudaOps() override;

  Executor& executor() override { return executor_; }
  bool slots_on_host() const override { return false; }
  std::optional<uint64_t> free_device_memory() const override;
  Status Place(const Weight& weight) override;
  Result<float*> AllocateSlots(std::size_t num_floats) override;
  Result<std::unique_ptr<KvCache>> NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) override;

  Result<MomentAccumulator> NewMoments(const KvShape& shape, const OscarFitOptions& options) override;
  Result<BalancedMoments> NewBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens) override;
  Status ReadSlots(const float* values, std::span<float> out) override;

  // kLogits is host memory, which Submit fills, or null; the others are device memory.
  void Bind(Slot slot, float* data) override;
  void SetInputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                 std::span<const int32_t> output_rows) override;
  Status BestTokens(std::span<DrawnToken> tokens) override;
  Status DrawTokens(std::span<const TokenDraw> draws, std::span<DrawnToken> tokens) override;
  bool Begin(const RecordingKey& key) override;
  Status Submit() override;
  StepRecording BeginStep(const StepKey& key) override;
  HeadTurn TakeTurn() override { return std::exchange(turn_, {}); }
  Status SubmitStep(Status recorded) override;

  Tensor Load(Slot slot, int width) override;
  void Store(Tensor tensor, Slot slot) override;
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
  struct PlacedWeight {
    cuda::DeviceArray<uint16_t> matrix;  // or the bytes of Fp8Bytes
    cuda::DeviceArray<float> vector;
  };
  enum class Kind : uint8_t { kNone, kLoad, kEmbed, kMatMul, kGatedMatMul, kAddBias, kAdd, kRmsNorm, kRope, kSwiGlu, kExperts, kGather };
  // What a node of kExperts has beside.
  struct Mixture {
    const uint16_t *router = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
    int num_experts = 0, num_used = 0, ffn_width = 0;
    int32_t *experts = nullptr, *order = nullptr;
    ExpertChunk* chunks = nullptr;
    float *logits = nullptr, *shares = nullptr, *gated = nullptr, *parts = nullptr;
  };
  struct Node {
    Kind kind = Kind::kNone;
    int rows = 0, width = 0;
    int num_uses = 0;
    Node *a = nullptr, *b = nullptr;       // operands; of a product: x, and the residual
    const uint16_t *matrix = nullptr, *second_matrix = nullptr;
    const float* vector = nullptr;         // gain or bias
    const float2* turns = nullptr;         // of RoPE
    const float* gain = nullptr;           // of RoPE or a product that normalises first
    float number = 0, epsilon = 0;         // epsilon of a norm; of RoPE or a product that normalises first
    int group = 0, pairs = 0;              // of norm and RoPE: values of a head; rotary pairs. Of an embedding: rows of the table
    bool halves = false;
    Mixture* mixture = nullptr;
    float* data = nullptr;                 // the result
    uint16_t* rounded = nullptr;           // place of the result in bf16 or FP8, where a library product reads it
    bool is_rounded = false;
    float* beside = nullptr;               // of a library product: before the residual, or of the second matrix; in FP8 sums over codes
  };
  struct KeptAngles {
    RopeParams params;
    const Weight* factors = nullptr;
    cuda::DeviceArray<float> values;
    float magnitude = 1;
    cuda::DeviceArray<float2> turns;  // [max_tokens, pairs], of the rows of SetInputs
  };
  struct KeptGraph {
    cudaGraphExec_t graph = nullptr;
    bool writes_logits = false;
    int logits_width = 0;
  };
  struct KeptShape {
    int num_tokens = 0, num_output_rows = 0;
    std::vector<KeptGraph> graphs;  // by segment
  };

  struct KeptStep {
    StepKey key;
    KeptGraph graph;
  };
  // How the library multiplies FP8 matrices of one size.
  struct Fp8Plan {
    int in_width = 0, out_width = 0, rows = 0;
    cublasLtMatrixLayout_t matrix = nullptr, x = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  CudaOps(int num_threads, int max_tokens, BatchRounding rounding, WeightPrecision precision)
      : executor_(num_threads), max_tokens_(max_tokens), rounding_(rounding), is_fp8_(precision == WeightPrecision::kFp8) {}
  Status Initialize();
  KeptShape& ShapeOf(const RecordingKey& key);
  static void Drop(KeptShape& shape);
  void DropSteps();
  // The graph of what has been captured in the stream; ends the capture.
  Result<cudaGraphExec_t> EndCapture(const Status& recorded);
  Node* NewNode(Kind kind, int rows, int width);
  Node* NodeOf(Tensor tensor) const { return reinterpret_cast<Node*>(tensor.node); }
  Tensor TensorOf(Node* node) const { return {reinterpret_cast<ggml_tensor*>(node)}; }
  const PlacedWeight& PlacedOf(const Weight& weight) const;
  Status FillTurns(const KeptAngles& angles);
  Result<float*> TakeScratch(std::size_t num_floats);

  void JoinNodes();
  void JoinNorms();
  void LeaveTurn();
  Status PlaceNodes();
  Status EmitAll();
  Status Emit(const Node& node);
  // Whether a product of so many rows is the library's; without, each row has the same bits beside any others.
  bool TakesLibrary(int rows) const;
  Status EmitProducts(std::size_t first, std::size_t& count);
  Status EmitGatedProduct(const Node& node);
  Status EmitRopes(std::size_t first, std::size_t& count);
  Status EmitLibraryProduct(Node& x, const uint16_t* matrix, int out_width, float* out);
  Status EmitLargeProduct(Node& node);
  Status PlaceFp8(const Weight& weight, PlacedWeight& placed);
  Status PlaceFp8Node(Node& node);
  Result<const Fp8Plan*> Fp8PlanOf(int in_width, int out_width, int rows);
  Status MultiplyFp8(const Node& x, const uint16_t* matrix, int out_width, float* out);
  Status EmitFp8Product(Node& node);
  Status EmitFp8Embedding(const Node& node);
  Status PlaceExperts(const Node& node);
  Status EmitExperts(const Node& node);
  void DropFp8Plans();
  Status CopyLogits(const KeptGraph& graph);
  Status ReadDrawn(std::span<uint64_t> drawn);

  GgmlExecutor executor_;
  const int max_tokens_;
  const BatchRounding rounding_;
  const bool is_fp8_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t library_ = nullptr;
  cuda::DeviceArray<std::byte> library_workspace_;
  cublasLtMatmulDesc_t fp8_product_ = nullptr;
  std::list<Fp8Plan> fp8_plans_;
  std::unordered_map<const Weight*, PlacedWeight> weights_;
  std::vector<cuda::DeviceArray<float>> slot_memory_;
  std::array<float*, kNumSlots> slots_ = {};
  cuda::DeviceArray<int32_t> tokens_, positions_, output_rows_;
  std::list<KeptAngles> angles_;
  cuda::DeviceArray<float> logits_;
  cuda::PinnedArray<float> staged_logits_;  // of steps of few rows, on their way to the caller's memory
  int logits_width_ = 0;                    // of the step submitted last
  cuda::DeviceArray<uint64_t> drawn_, draw_keys_;
  cuda::PinnedArray<uint64_t> staged_drawn_;
  cuda::DeviceArray<DrawRow> draw_rows_;
  cuda::DeviceArray<LogitChange> logit_changes_;

  // Scratch of recordings: chunks that stay in place, because graphs point into them.
  std::vector<cuda::DeviceArray<float>> scratch_;
  std::size_t scratch_chunk_ = 0, scratch_used_ = 0;

  std::list<KeptShape> shapes_;  // most recently used first
  std::list<KeptStep> steps_;    // likewise; the first is the one begun last
  bool records_step_ = false;
  HeadTurn turn_;                // left to the cache
  RecordingKey key_;
  bool is_kept_ = false;
  std::deque<Node> nodes_;       // of the recording in progress
  std::deque<Mixture> mixtures_;  // likewise
  Status record_error_;          // of a verb
  int num_rows_ = 0;             // of SetInputs
  KeptGraph current_;            // what the recording in progress writes
};

}  // namespace oscar::engine
