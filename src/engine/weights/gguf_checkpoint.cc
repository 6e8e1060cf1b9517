#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ggml-cpu.h>
#include <ggml.h>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/engine/weights/checkpoint.h"
#include "src/engine/weights/dequantize.h"

namespace oscar::engine {
namespace {

// Alignment that ggml's kernels may assume of a tensor.
constexpr uintptr_t kTensorAlignment = 32;

std::string DimsText(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

std::span<const int64_t> WithoutTrailingOnes(std::span<const int64_t> dims) {
  while (dims.size() > 1 && dims.back() == 1) dims = dims.first(dims.size() - 1);
  return dims;
}

// Bytes of the tensor, or why ggml's CPU code cannot compute with its type.
Result<uint64_t> CheckedBytes(const io::GgufTensor& tensor) {
  const std::string what = "tensor \"" + tensor.name + "\"";
  if (tensor.ggml_type >= GGML_TYPE_COUNT) {
    return {StatusCode::kUnsupported, what + " has the ggml type number " + std::to_string(tensor.ggml_type) +
                                          ", which this version of ggml does not know"};
  }
  const auto type = static_cast<ggml_type>(tensor.ggml_type);
  const ggml_type_traits* traits = ggml_get_type_traits(type);
  if (traits->blck_size <= 0 || traits->type_size == 0 || ggml_get_type_traits_cpu(type)->vec_dot == nullptr) {
    const std::string name = traits->type_name != nullptr ? traits->type_name : std::to_string(tensor.ggml_type);
    return {StatusCode::kUnsupported, what + " has the type " + name + ", which is not one that weights can have"};
  }
  if (tensor.dims[0] % traits->blck_size != 0) {
    return {StatusCode::kCorruptData, what + " has rows of " + std::to_string(tensor.dims[0]) + " elements, but its type " +
                                          traits->type_name + " stores multiples of " + std::to_string(traits->blck_size)};
  }
  const auto num_blocks = static_cast<uint64_t>(tensor.num_elements() / traits->blck_size);
  if (num_blocks > std::numeric_limits<int64_t>::max() / traits->type_size) {
    return {StatusCode::kCorruptData, what + " of dims " + DimsText(tensor.dims) + " is larger than any file"};
  }
  return num_blocks * traits->type_size;
}

class GgufCheckpoint final : public Checkpoint {
 public:
  GgufCheckpoint(io::GgufFile file, WeightPrecision precision) : file_(std::move(file)), precision_(precision) {
    ggml_cpu_init();  // fills the tables behind ggml's type traits
    // Tensor headers only: the data is the mapped file.
    const size_t header_bytes = (file_.tensors().size() + 1) * ggml_tensor_overhead();
    context_ = ggml_init({.mem_size = header_bytes, .mem_buffer = nullptr, .no_alloc = true});
    OSCAR_CHECK(context_ != nullptr);
  }
  ~GgufCheckpoint() override { ggml_free(context_); }
  GgufCheckpoint(const GgufCheckpoint&) = delete;
  GgufCheckpoint& operator=(const GgufCheckpoint&) = delete;

  const io::GgufMetadata& metadata() const override { return file_.metadata(); }
  uint64_t weight_bytes() const override { return weight_bytes_; }

  Result<const Weight*> Require(std::string_view name, std::span<const int64_t> dims) override {
    OSCAR_ASSIGN_OR_RETURN(const Weight* weight, Find(name, dims));
    if (weight == nullptr) {
      return {StatusCode::kNotFound, "tensor \"" + std::string(name) + "\" " + DimsText(dims) + " is missing"};
    }
    return weight;
  }

  Result<const Weight*> Find(std::string_view name, std::span<const int64_t> dims) override {
    const io::GgufTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return nullptr;
    if (!std::ranges::equal(WithoutTrailingOnes(tensor->dims), WithoutTrailingOnes(dims))) {
      return {StatusCode::kCorruptData, "tensor \"" + tensor->name + "\" has dims " + DimsText(tensor->dims) +
                                            " where the metadata asks for " + DimsText(dims)};
    }
    if (const auto known = weights_.find(name); known != weights_.end()) return &known->second;
    OSCAR_ASSIGN_OR_RETURN(Weight weight, Load(*tensor, dims));
    if (precision_ == WeightPrecision::kF32 && weight.type != GGML_TYPE_F32) OSCAR_TRY(Widen(weight));
    SetTensor(weight);
    weight_bytes_ += weight.bytes.size();
    return &weights_.emplace(std::string(name), std::move(weight)).first->second;
  }

  Status CheckAllUsed() const override {
    for (const io::GgufTensor& tensor : file_.tensors()) {
      if (!weights_.contains(tensor.name)) {
        return {StatusCode::kUnsupported, "tensor \"" + tensor.name + "\" is not part of this architecture as we compute it"};
      }
    }
    return {};
  }

 private:
  Result<Weight> Load(const io::GgufTensor& tensor, std::span<const int64_t> dims) {
    OSCAR_ASSIGN_OR_RETURN(const uint64_t num_bytes, CheckedBytes(tensor));
    if (dims.size() == 1 && tensor.ggml_type != GGML_TYPE_F32) {
      return {StatusCode::kUnsupported, "vector \"" + tensor.name + "\" has the type " +
                                            ggml_type_name(static_cast<ggml_type>(tensor.ggml_type)) + " instead of f32"};
    }
    Weight weight{.name = tensor.name, .type = tensor.ggml_type, .dims = {dims.begin(), dims.end()}, .bytes = {}};
    OSCAR_ASSIGN_OR_RETURN(weight.bytes, file_.TensorBytes(tensor, num_bytes));
    if (reinterpret_cast<uintptr_t>(weight.bytes.data()) % kTensorAlignment != 0) {
      return {StatusCode::kUnsupported, "tensor \"" + tensor.name + "\" does not begin at a multiple of " +
                                            std::to_string(kTensorAlignment) + " bytes"};
    }
    return weight;
  }

  Status Widen(Weight& weight) {
    const size_t num_elements = static_cast<size_t>(weight.dims[0] * NumRows(weight));
    const size_t num_bytes = num_elements * sizeof(float);
    widened_.emplace_back(std::aligned_alloc(kTensorAlignment, (num_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment));
    if (widened_.back() == nullptr) {
      return {StatusCode::kResourceExhausted, "no memory for tensor \"" + weight.name + "\" in f32: " + std::to_string(num_bytes) + " bytes"};
    }
    const std::span<float> rows(static_cast<float*>(widened_.back().get()), num_elements);
    OSCAR_TRY(DequantizeRowsInto(weight, 0, NumRows(weight), rows));
    weight.type = GGML_TYPE_F32;
    weight.bytes = std::as_bytes(rows);
    return {};
  }

  void SetTensor(Weight& weight) {
    weight.tensor = ggml_new_tensor(context_, static_cast<ggml_type>(weight.type), static_cast<int>(weight.dims.size()), weight.dims.data());
    weight.tensor->data = const_cast<std::byte*>(weight.bytes.data());  // ggml only reads the operands of a graph
    OSCAR_CHECK(ggml_nbytes(weight.tensor) == weight.bytes.size());
  }

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  io::GgufFile file_;
  WeightPrecision precision_;
  std::vector<std::unique_ptr<void, Free>> widened_;
  ggml_context* context_ = nullptr;
  std::map<std::string, Weight, std::less<>> weights_;
  uint64_t weight_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Checkpoint> MakeGgufCheckpoint(io::GgufFile file, WeightPrecision precision) {
  return std::make_unique<GgufCheckpoint>(std::move(file), precision);
}

}  // namespace oscar::engine
