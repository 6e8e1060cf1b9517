// safetensors container (huggingface/safetensors README, "Format"): u64 header length, JSON header, data. Reader for
// files that may be hostile, and a writer whose bytes depend on its input alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/io/mapped_file.h"

namespace oscar::io {

enum class SafetensorsDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};
std::size_t SafetensorsElementBytes(SafetensorsDtype dtype);
std::string_view SafetensorsDtypeName(SafetensorsDtype dtype);  // as in the header: "F32"

struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;        // row-major, last dimension contiguous; empty = a scalar
  std::span<const std::byte> bytes;  // product of shape times element bytes, little-endian; inside the parsed bytes
};

class SafetensorsFile {
 public:
  // Maps and parses. kCorruptData or kUnsupported (a dtype) naming the path, and the tensor or field.
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);
  // Parses bytes that outlive the result. Accepted is only a file whose tensors lie in the data section one after the
  // other without gap, overlap or rest, as the format demands.
  static Result<SafetensorsFile> Parse(std::span<const std::byte> bytes);

  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }  // "__metadata__"
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }                        // by name
  const SafetensorsTensor* Find(std::string_view name) const;
  std::span<const std::byte> data_section() const { return data_; }

 private:
  std::optional<MappedFile> file_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<SafetensorsTensor> tensors_;
  std::span<const std::byte> data_;
};

// Collects tensors and lays them out: wide elements first, then by name, so that each is aligned to its element size;
// the data section starts at a multiple of 64 bytes. The same input gives the same bytes, in whatever order it is
// added.
class SafetensorsWriter {
 public:
  // Text that is not UTF-8 is stored with U+FFFD in place of the bad bytes.
  void SetMetadata(std::string_view key, std::string_view value);
  // `bytes` must live until Finish. kInvalidArgument for a name that is empty, reserved, taken or not UTF-8, and when
  // shape and bytes disagree.
  Status Add(std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes);
  std::vector<std::byte> Finish() const;

 private:
  std::map<std::string, std::string, std::less<>> metadata_;
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
};

}  // namespace oscar::io
