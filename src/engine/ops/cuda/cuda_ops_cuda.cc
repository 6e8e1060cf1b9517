#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "oscar/cuda.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/ops/cuda/cuda_ops.h"
#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/rope_angles.h"
#include "src/engine/weights/dequantize.h"

namespace oscar::engine {

using cuda::FromCuda;

namespace {

// Recordings of up to so many rows become graphs: decode steps of a batch.
constexpr int kMostGraphRows = 256;
constexpr size_t kKeptShapes = 16;
constexpr size_t kKeptSteps = 8;

Status FromLibrary(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {StatusCode::kInternal, std::string("cuBLAS, ") + what + ": " + cublasGetStatusString(status)};
}

}  // namespace

Result<std::unique_ptr<Ops>> MakeCudaOps(int num_threads, int max_tokens, BatchRounding rounding, WeightPrecision precision) {
  return CudaOps::Create(num_threads, max_tokens, rounding, precision);
}

Result<std::unique_ptr<Ops>> CudaOps::Create(int num_threads, int max_tokens, BatchRounding rounding, WeightPrecision precision) {
  if (num_threads < 1 || num_threads > GGML_MAX_N_THREADS) {
    return {StatusCode::kInvalidArgument, "the number of threads is " + std::to_string(num_threads) + ", not 1 to " +
                                              std::to_string(GGML_MAX_N_THREADS)};
  }
  std::unique_ptr<CudaOps> ops(new CudaOps(num_threads, max_tokens, rounding, precision));
  OSCAR_TRY(ops->Initialize());
  return std::unique_ptr<Ops>(std::move(ops));
}

Status CudaOps::Initialize() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return {StatusCode::kUnsupported, std::string("no CUDA device can be used: ") +
                                          (error != cudaSuccess ? cudaGetErrorString(error) : "there is none")};
  }
  cudaDeviceProp properties = {};
  OSCAR_TRY(FromCuda(cudaGetDeviceProperties(&properties, 0), "device"));
  if (properties.major != 9) {
    return {StatusCode::kUnsupported, std::string("the CUDA kernels of this build are for compute capability 9.0, ") + properties.name +
                                          " has " + std::to_string(properties.major) + "." + std::to_string(properties.minor)};
  }
  OSCAR_TRY(FromCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
  OSCAR_TRY(FromLibrary(cublasCreate(&library_), "start"));
  OSCAR_TRY(FromLibrary(cublasSetStream(library_, stream_), "stream"));
  OSCAR_TRY(library_workspace_.Grow(kLibraryWorkspace));
  OSCAR_TRY(FromLibrary(cublasSetWorkspace(library_, library_workspace_.data(), kLibraryWorkspace), "workspace"));
  const auto tokens = static_cast<size_t>(max_tokens_);
  OSCAR_TRY(tokens_.Grow(tokens));
  OSCAR_TRY(positions_.Grow(tokens));
  return output_rows_.Grow(tokens);
}

CudaOps::~CudaOps() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (KeptShape& shape : shapes_) Drop(shape);
  DropSteps();
  DropFp8Plans();
  if (library_ != nullptr) cublasDestroy(library_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status CudaOps::Place(const Weight& weight) {
  if (weights_.contains(&weight)) return {};
  PlacedWeight placed;
  const int64_t width = weight.dims[0], rows = NumRows(weight);
  if (is_fp8_ && weight.dims.size() > 2) {
    return {StatusCode::kUnsupported, "tensor \"" + weight.name + "\": FP8 weights are not supported for mixtures of experts"};
  }
  if (is_fp8_ && weight.dims.size() > 1) {
    OSCAR_TRY(PlaceFp8(weight, placed));
    weights_.emplace(&weight, std::move(placed));
    return {};
  }
  if (weight.is_random) {
    if (weight.dims.size() == 1) {
      OSCAR_TRY(placed.vector.Upload(std::vector<float>(static_cast<size_t>(width), 1.0f), stream_));
    } else {
      OSCAR_TRY(placed.matrix.Grow(static_cast<size_t>(width * rows)));
      const float deviation = 1.0f / std::sqrt(static_cast<float>(width));
      OSCAR_TRY(FromCuda(LaunchRandomNormal(placed.matrix.data(), width * rows, deviation, weights_.size(), stream_), "random weights"));
    }
    weights_.emplace(&weight, std::move(placed));
    return {};
  }
  if (weight.dims.size() == 1) {
    std::vector<float> values(static_cast<size_t>(width));
    if (weight.bytes.size() != values.size() * sizeof(float)) {
      return {StatusCode::kUnsupported, "tensor \"" + weight.name + "\" is not f32, as the CUDA device needs vectors to be"};
    }
    std::memcpy(values.data(), weight.bytes.data(), weight.bytes.size());
    OSCAR_TRY(placed.vector.Upload(values, stream_));
  } else {
    if (width % 8 != 0) {
      return {StatusCode::kUnsupported, "tensor \"" + weight.name + "\" has rows of " + std::to_string(width) +
                                            " values; the CUDA device needs a multiple of 8"};
    }
    OSCAR_TRY(placed.matrix.Grow(static_cast<size_t>(width * rows)));
    cuda::DeviceArray<float> staged;
    const int64_t rows_at_once = std::max<int64_t>(1, kPlacedAtOnce / width);
    for (int64_t first = 0; first < rows; first += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - first);
      OSCAR_ASSIGN_OR_RETURN(const std::vector<float> values, DequantizeRows(weight, first, count));
      OSCAR_TRY(staged.Upload(values, stream_));
      OSCAR_TRY(FromCuda(LaunchRoundToBf16(staged.data(), placed.matrix.data() + first * width, count * width, stream_), "weights"));
    }
    OSCAR_TRY(FromCuda(cudaStreamSynchronize(stream_), "weights"));
  }
  weights_.emplace(&weight, std::move(placed));
  return {};
}

std::optional<uint64_t> CudaOps::free_device_memory() const {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();  // 0: whoever asks has to say a size
  return uint64_t{free};
}

Result<float*> CudaOps::AllocateSlots(std::size_t num_floats) {
  cuda::DeviceArray<float> memory;
  OSCAR_TRY(memory.Grow(num_floats));
  slot_memory_.push_back(std::move(memory));
  return slot_memory_.back().data();
}

Result<std::unique_ptr<KvCache>> CudaOps::NewCache(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config) {
  return CreateCudaKvCache(method, std::move(profile), config, executor_, stream_);
}

Result<MomentAccumulator> CudaOps::NewMoments(const KvShape& shape, const OscarFitOptions& options) {
  return CreateCudaMoments(shape, options, stream_);
}

Result<BalancedMoments> CudaOps::NewBalancedMoments(const KvShape& shape, RotaryEmbedding rotary, int64_t expected_tokens) {
  return CreateCudaBalancedMoments(shape, std::move(rotary), expected_tokens, stream_);
}

Status CudaOps::ReadSlots(const float* values, std::span<float> out) {
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(out.data(), values, out.size_bytes(), cudaMemcpyDeviceToHost, stream_), "rows"));
  return FromCuda(cudaStreamSynchronize(stream_), "rows");
}

void CudaOps::Bind(Slot slot, float* data) {
  float*& bound = slots_[static_cast<size_t>(slot)];
  if (bound != data && slot != Slot::kLogits) {  // graphs point to the old memory
    cudaStreamSynchronize(stream_);
    for (KeptShape& shape : shapes_) Drop(shape);
    shapes_.clear();
    DropSteps();
  }
  bound = data;
}

void CudaOps::SetInputs(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                        std::span<const int32_t> output_rows) {
  OSCAR_CHECK(tokens.size() <= static_cast<size_t>(max_tokens_) && positions.size() == tokens.size() &&
              output_rows.size() <= tokens.size());
  record_error_ = tokens_.Upload(tokens, stream_);
  if (record_error_.ok()) record_error_ = positions_.Upload(positions, stream_);
  if (record_error_.ok()) record_error_ = output_rows_.Upload(output_rows, stream_);
  num_rows_ = static_cast<int>(positions.size());
  for (const KeptAngles& angles : angles_) {
    if (record_error_.ok()) record_error_ = FillTurns(angles);
  }
}

Status CudaOps::FillTurns(const KeptAngles& angles) {
  const TurnsParams turns = {positions_.data(), angles.values.data(), angles.turns.data(), num_rows_, angles.params.dims / 2, angles.magnitude};
  return FromCuda(LaunchTurns(turns, stream_), "RoPE");
}

void CudaOps::Drop(KeptShape& shape) {
  for (KeptGraph& kept : shape.graphs) {
    if (kept.graph != nullptr) cudaGraphExecDestroy(kept.graph);
  }
  shape.graphs.clear();
}

void CudaOps::DropSteps() {
  for (KeptStep& step : steps_) {
    if (step.graph.graph != nullptr) cudaGraphExecDestroy(step.graph.graph);
  }
  steps_.clear();
}

CudaOps::KeptShape& CudaOps::ShapeOf(const RecordingKey& key) {
  const auto found = std::ranges::find_if(shapes_, [&](const KeptShape& shape) {
    return shape.num_tokens == key.num_tokens && shape.num_output_rows == key.num_output_rows;
  });
  if (found != shapes_.end()) {
    shapes_.splice(shapes_.begin(), shapes_, found);
  } else {
    if (shapes_.size() >= kKeptShapes) {
      Drop(shapes_.back());
      shapes_.pop_back();
    }
    shapes_.push_front({key.num_tokens, key.num_output_rows, {}});
  }
  return shapes_.front();
}

bool CudaOps::Begin(const RecordingKey& key) {
  OSCAR_CHECK(key.num_tokens >= 1 && key.num_tokens <= max_tokens_);
  key_ = key;
  nodes_.clear();
  mixtures_.clear();
  current_ = {};
  scratch_chunk_ = scratch_used_ = 0;
  is_kept_ = false;
  if (records_step_ || key.num_tokens > kMostGraphRows) return true;
  KeptShape& shape = ShapeOf(key);
  const auto segment = static_cast<size_t>(key.segment);
  if (shape.graphs.size() <= segment) shape.graphs.resize(segment + 1);
  is_kept_ = shape.graphs[segment].graph != nullptr;
  return !is_kept_;
}

Status CudaOps::Submit() {
  OSCAR_TRY(record_error_);
  if (records_step_ || key_.num_tokens > kMostGraphRows) {
    JoinNodes();
    if (records_step_ && rounding_ == BatchRounding::kFree) LeaveTurn();  // its turn rounds otherwise than the steps before a recording
    OSCAR_TRY(PlaceNodes());
    OSCAR_TRY(EmitAll());
    return records_step_ ? Status() : CopyLogits(current_);
  }
  KeptGraph& kept = ShapeOf(key_).graphs[static_cast<size_t>(key_.segment)];
  if (!is_kept_) {
    JoinNodes();
    OSCAR_TRY(PlaceNodes());
    OSCAR_TRY(FromCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
    OSCAR_ASSIGN_OR_RETURN(current_.graph, EndCapture(EmitAll()));
    kept = current_;
    is_kept_ = true;
  }
  OSCAR_TRY(FromCuda(cudaGraphLaunch(kept.graph, stream_), "graph launch"));
  return CopyLogits(kept);
}

Result<cudaGraphExec_t> CudaOps::EndCapture(const Status& recorded) {
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  cudaGraphExec_t executable = nullptr;
  Status made = recorded;
  if (made.ok()) made = FromCuda(ended, "capture");
  if (made.ok()) made = FromCuda(cudaGraphInstantiate(&executable, graph, 0), "graph");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!made.ok()) return made;
  return executable;
}

StepRecording CudaOps::BeginStep(const StepKey& key) {
  key_ = {.segment = key.num_segments - 1, .num_tokens = key.num_tokens, .num_output_rows = key.num_tokens};
  const auto found = std::ranges::find_if(steps_, [&](const KeptStep& step) { return step.key == key; });
  if (found != steps_.end()) {
    steps_.splice(steps_.begin(), steps_, found);
    return StepRecording::kKept;
  }
  // Once its segments have run, nothing of the step is allocated or uploaded any more.
  const auto shape = std::ranges::find_if(shapes_, [&](const KeptShape& kept) {
    return kept.num_tokens == key.num_tokens && kept.num_output_rows == key.num_tokens;
  });
  if (shape == shapes_.end() || shape->graphs.size() < static_cast<size_t>(key.num_segments) ||
      std::ranges::any_of(shape->graphs, [](const KeptGraph& kept) { return kept.graph == nullptr; })) {
    return StepRecording::kNone;
  }
  if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return StepRecording::kNone;
  records_step_ = true;
  steps_.push_front({key, {}});
  return StepRecording::kNew;
}

Status CudaOps::SubmitStep(Status recorded) {
  OSCAR_CHECK(!steps_.empty());
  if (!records_step_) {
    OSCAR_TRY(recorded);
  } else {
    records_step_ = false;
    Result<cudaGraphExec_t> graph = EndCapture(recorded);
    if (!graph.ok()) {
      steps_.pop_front();
      return graph.status();
    }
    steps_.front().graph = current_;
    steps_.front().graph.graph = *graph;
    if (steps_.size() > kKeptSteps) {
      cudaGraphExecDestroy(steps_.back().graph.graph);
      steps_.pop_back();
    }
  }
  OSCAR_TRY(record_error_);
  OSCAR_TRY(FromCuda(cudaGraphLaunch(steps_.front().graph.graph, stream_), "graph launch"));
  return CopyLogits(steps_.front().graph);
}

Status CudaOps::CopyLogits(const KeptGraph& graph) {
  if (!graph.writes_logits) return {};
  const auto values = static_cast<size_t>(key_.num_output_rows) * static_cast<size_t>(graph.logits_width);
  logits_width_ = graph.logits_width;
  float* const to = slots_[static_cast<size_t>(Slot::kLogits)];
  if (to == nullptr) return {};
  const bool is_staged = key_.num_output_rows <= kMostGraphRows;
  if (is_staged) OSCAR_TRY(staged_logits_.Grow(values));
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(is_staged ? staged_logits_.data() : to, logits_.data(), values * sizeof(float), cudaMemcpyDeviceToHost,
                                     stream_), "logits"));
  OSCAR_TRY(FromCuda(cudaStreamSynchronize(stream_), "a step"));
  if (is_staged) std::copy_n(staged_logits_.data(), values, to);
  return {};
}

// --- Verbs

CudaOps::Node* CudaOps::NewNode(Kind kind, int rows, int width) {
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.rows = rows;
  node.width = width;
  return &node;
}

const CudaOps::PlacedWeight& CudaOps::PlacedOf(const Weight& weight) const {
  const auto found = weights_.find(&weight);
  OSCAR_CHECK_MSG(found != weights_.end(), weight.name);
  return found->second;
}

Tensor CudaOps::Load(Slot slot, int width) {
  Node* node = NewNode(Kind::kLoad, key_.num_tokens, width);
  node->data = slots_[static_cast<size_t>(slot)];
  return TensorOf(node);
}

void CudaOps::Store(Tensor tensor, Slot slot) {
  Node* node = NodeOf(tensor);
  OSCAR_CHECK(node->kind != Kind::kLoad && node->data == nullptr);
  if (slot != Slot::kLogits) {
    node->data = slots_[static_cast<size_t>(slot)];
    return;
  }
  const auto needed = static_cast<size_t>(node->rows) * static_cast<size_t>(node->width);
  if (logits_.size() < needed) {  // graphs point to the old memory
    cudaStreamSynchronize(stream_);
    DropSteps();
    for (KeptShape& shape : shapes_) {
      for (KeptGraph& kept : shape.graphs) {
        if (!kept.writes_logits) continue;
        cudaGraphExecDestroy(kept.graph);
        kept = {};
      }
    }
    record_error_ = logits_.Grow(needed);
  }
  node->data = logits_.data();
  current_.writes_logits = true;
  current_.logits_width = node->width;
}

Tensor CudaOps::Embed(const Weight& table) {
  Node* node = NewNode(Kind::kEmbed, key_.num_tokens, static_cast<int>(table.dims[0]));
  node->matrix = PlacedOf(table).matrix.data();
  node->group = static_cast<int>(table.dims[1]);
  return TensorOf(node);
}

Tensor CudaOps::MatMul(const Weight& matrix, Tensor x) {
  Node* in = NodeOf(x);
  OSCAR_CHECK_MSG(matrix.dims.size() == 2 && matrix.dims[0] == in->width, matrix.name);
  Node* node = NewNode(Kind::kMatMul, in->rows, static_cast<int>(matrix.dims[1]));
  node->a = in;
  node->matrix = PlacedOf(matrix).matrix.data();
  ++in->num_uses;
  return TensorOf(node);
}

Tensor CudaOps::AddBias(Tensor x, const Weight& bias) {
  Node* in = NodeOf(x);
  OSCAR_CHECK_MSG(bias.dims.size() == 1 && bias.dims[0] == in->width, bias.name);
  Node* node = NewNode(Kind::kAddBias, in->rows, in->width);
  node->a = in;
  node->vector = PlacedOf(bias).vector.data();
  ++in->num_uses;
  return TensorOf(node);
}

Tensor CudaOps::Add(Tensor a, Tensor b) {
  Node *first = NodeOf(a), *second = NodeOf(b);
  OSCAR_CHECK(first->rows == second->rows && first->width == second->width);
  Node* node = NewNode(Kind::kAdd, first->rows, first->width);
  node->a = first;
  node->b = second;
  ++first->num_uses;
  ++second->num_uses;
  return TensorOf(node);
}

Tensor CudaOps::RmsNorm(Tensor x, const Weight& gain, float epsilon) {
  Node* in = NodeOf(x);
  OSCAR_CHECK_MSG(gain.dims.size() == 1 && in->width % gain.dims[0] == 0, gain.name);
  Node* node = NewNode(Kind::kRmsNorm, in->rows, in->width);
  node->a = in;
  node->vector = PlacedOf(gain).vector.data();
  node->group = static_cast<int>(gain.dims[0]);
  node->number = epsilon;
  ++in->num_uses;
  return TensorOf(node);
}

Tensor CudaOps::Rope(Tensor x, int head_dim, const RopeParams& params, const Weight* factors) {
  Node* in = NodeOf(x);
  OSCAR_CHECK(in->width % head_dim == 0 && params.dims % 2 == 0 && params.dims <= head_dim);
  OSCAR_CHECK(factors == nullptr || factors->dims[0] * 2 == params.dims);
  auto kept = std::ranges::find_if(angles_, [&](const KeptAngles& angles) {
    return angles.params == params && angles.factors == factors;
  });
  if (kept == angles_.end()) {
    std::vector<float> values(factors != nullptr ? static_cast<size_t>(factors->dims[0]) : 0);
    if (factors != nullptr) std::memcpy(values.data(), factors->bytes.data(), values.size() * sizeof(float));
    KeptAngles made = {params, factors, {}, params.magnitude, {}};
    if (params.yarn_mix != 0) made.magnitude *= 1.0f + 0.1f * std::log(1.0f / params.frequency_scale);
    record_error_ = made.values.Upload(RopeAngles(params, values), stream_);
    if (record_error_.ok()) record_error_ = made.turns.Grow(static_cast<size_t>(max_tokens_) * static_cast<size_t>(params.dims / 2));
    if (record_error_.ok()) record_error_ = FillTurns(made);
    angles_.push_back(std::move(made));
    kept = std::prev(angles_.end());
  }
  Node* node = NewNode(Kind::kRope, in->rows, in->width);
  node->a = in;
  node->turns = kept->turns.data();
  node->group = head_dim;
  node->pairs = params.dims / 2;
  node->halves = params.neox;
  ++in->num_uses;
  return TensorOf(node);
}

Tensor CudaOps::SwiGlu(Tensor gate, Tensor up) {
  Node *first = NodeOf(gate), *second = NodeOf(up);
  OSCAR_CHECK(first->rows == second->rows && first->width == second->width);
  Node* node = NewNode(Kind::kSwiGlu, first->rows, first->width);
  node->a = first;
  node->b = second;
  ++first->num_uses;
  ++second->num_uses;
  return TensorOf(node);
}

Tensor CudaOps::GatherOutputRows(Tensor x) {
  Node* in = NodeOf(x);
  if (key_.num_output_rows == key_.num_tokens) return x;  // all rows, in order
  Node* node = NewNode(Kind::kGather, key_.num_output_rows, in->width);
  node->a = in;
  ++in->num_uses;
  return TensorOf(node);
}

}  // namespace oscar::engine
