// The pickles of tensor files, without an unpickler: dictionaries of numbers, texts and tensors, read by a stack machine that knows
// the opcodes and the names of method.md 7.2 and refuses all others. Nothing is ever executed, imported or built by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "oscar/result.h"

namespace oscar::io {

enum class TorchDtype : uint8_t { kF32, kF64, kF16, kBF16 };

// A view of a storage of the archive; offset and strides count elements.
struct PickledTensor {
  TorchDtype dtype = TorchDtype::kF32;
  std::string storage;           // "data/<storage>" in the archive
  int64_t storage_elements = 0;
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

struct PickledValue;
// In the order of the file.
struct PickledDict {
  std::vector<std::pair<PickledValue, PickledValue>> items;
  // The value of the first such text or integer key (an integer key also matches its decimal text); nullptr when there is none.
  const PickledValue* Find(std::string_view key) const;
};
struct PickledValue {
  std::variant<bool, int64_t, std::string, PickledTensor, std::shared_ptr<PickledDict>> content;

  const PickledDict* dict() const {
    const auto* held = std::get_if<std::shared_ptr<PickledDict>>(&content);
    return held == nullptr ? nullptr : held->get();
  }
};

// The one value of a pickle of protocol 2 to 4. kCorruptData (truncated, trailing bytes, a stack that does not fit) or
// kUnsupported (an opcode or a global that tensor files do not have), naming the byte offset.
Result<PickledValue> ParsePickle(std::span<const std::byte> bytes);

// Elements of a tensor in row-major order as f32, from the bytes of its storage. kCorruptData when offset, shape and strides
// reach outside the storage, or the storage has another size than the pickle says.
Result<std::vector<float>> ReadTensor(const PickledTensor& tensor, std::span<const std::byte> storage);

}  // namespace oscar::io
