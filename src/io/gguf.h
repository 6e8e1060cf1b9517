// GGUF container reader (ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian): metadata and tensor directory. Our
// own, since hostile files must give a Status; what is inside a block is ggml's business once sizes are checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "oscar/result.h"
#include "src/io/mapped_file.h"

namespace oscar::io {

// Metadata of a model file: typed look-ups whose errors name the key. Integers of any width are int64; float32 and float64
// are double. uint64 values above 2^63 are refused by the parser.
class GgufMetadata {
 public:
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                             std::vector<double>, std::vector<std::string>>;

  void Set(std::string key, Value value);
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  const Value* Find(std::string_view key) const;
  const std::map<std::string, Value, std::less<>>& entries() const { return entries_; }

  // kNotFound when absent, kCorruptData when of another type. Double takes integers too.
  Result<std::string> String(std::string_view key) const;
  Result<int64_t> Integer(std::string_view key) const;
  Result<double> Double(std::string_view key) const;
  Result<bool> Bool(std::string_view key) const;
  Result<std::span<const std::string>> Strings(std::string_view key) const;
  Result<std::span<const int64_t>> Integers(std::string_view key) const;
  Result<std::span<const double>> Doubles(std::string_view key) const;
  // The default when absent; still an error when of another type.
  Result<std::string> StringOr(std::string_view key, std::string_view fallback) const;
  Result<int64_t> IntegerOr(std::string_view key, int64_t fallback) const;
  Result<double> DoubleOr(std::string_view key, double fallback) const;
  Result<bool> BoolOr(std::string_view key, bool fallback) const;

 private:
  std::map<std::string, Value, std::less<>> entries_;
};

struct GgufTensor {
  std::string name;
  uint32_t ggml_type = 0;            // ggml's enum value; not checked here beyond being below 1024
  std::vector<int64_t> dims;         // ne[0] (contiguous) first; 1 to 4 of them, each >= 1
  uint64_t offset = 0;               // bytes from the start of the data section
  int64_t num_elements() const;      // no overflow: checked when parsed
};

class GgufFile {
 public:
  // Maps and parses. Errors name the path and the place: key, tensor, or byte offset.
  static Result<GgufFile> Open(const std::filesystem::path& path);
  // Parses bytes that outlive the result (fuzzing, tests).
  static Result<GgufFile> Parse(std::span<const std::byte> bytes);

  uint32_t version() const { return version_; }
  const GgufMetadata& metadata() const { return metadata_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;
  // The tensor's bytes. kCorruptData when offset + num_bytes passes the end of the file.
  Result<std::span<const std::byte>> TensorBytes(const GgufTensor& tensor, uint64_t num_bytes) const;
  std::span<const std::byte> data_section() const { return data_; }

 private:
  std::optional<MappedFile> file_;
  uint32_t version_ = 0;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
  std::span<const std::byte> data_;
};

}  // namespace oscar::io
