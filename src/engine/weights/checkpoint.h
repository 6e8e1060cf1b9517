// Checkpoint: the tensors of a model file over mapped memory, handed out by name once their type and shape are known to be
// good. ggml aborts on a bad type or shape, so nothing reaches it unchecked.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "oscar/result.h"
#include "src/engine/weights/weight.h"
#include "src/io/gguf.h"

namespace oscar::engine {

// How weights are kept for computing. kF32 widens quantised matrices at load, four to eight times their bytes: ggml multiplies quantised
// weights by activations rounded to 8 bits, which turns any other last bit of a sum into a difference of about 1e-3 nats. kFp8: E4M3 with a
// scale per row of a matrix, on a CUDA device.
enum class WeightPrecision : uint8_t { kStored, kF32, kFp8 };
constexpr std::string_view NameOf(WeightPrecision precision) {
  return precision == WeightPrecision::kF32 ? "f32" : (precision == WeightPrecision::kFp8 ? "fp8" : "stored");
}

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual const io::GgufMetadata& metadata() const = 0;

  // The tensor `name` with exactly these dims (a file may add trailing dims of 1). Vectors (one dim) must be f32.
  // kNotFound when absent; kCorruptData naming expected and found dims, or a size that the file does not hold;
  // kUnsupported for a type that cannot be computed with. Lives as long as the checkpoint.
  virtual Result<const Weight*> Require(std::string_view name, std::span<const int64_t> dims) = 0;
  // The same, but nullptr when absent.
  virtual Result<const Weight*> Find(std::string_view name, std::span<const int64_t> dims) = 0;
  // kUnsupported naming a tensor of the file that was never asked for: a model that has it is not the one we compute.
  virtual Status CheckAllUsed() const = 0;
  // Bytes of the tensors handed out.
  virtual uint64_t weight_bytes() const = 0;
};

// Takes a parsed file.
std::unique_ptr<Checkpoint> MakeGgufCheckpoint(io::GgufFile file, WeightPrecision precision = WeightPrecision::kStored);

}  // namespace oscar::engine
