// Weight: one tensor of a checkpoint, checked and ready to be computed with. It owns nothing: the bytes lie in the mapped
// file or, widened to f32, in the Checkpoint that made it, and so does the ggml tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

struct ggml_tensor;

namespace oscar::engine {

struct Weight {
  std::string name;
  uint32_t type = 0;                 // ggml's enum value; one that ggml's CPU code can multiply with
  std::vector<int64_t> dims;         // dims[0] contiguous: a matrix [out, in] has dims {in, out}
  std::span<const std::byte> bytes;  // in the mapped file, or widened
  ggml_tensor* tensor = nullptr;     // over `bytes`
  bool is_random = false;            // no bytes: random values, for speed measurements
};

}  // namespace oscar::engine
