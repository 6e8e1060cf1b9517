// GgufBuilder: writes GGUF bytes for tests, good ones and, through the raw fields, bad ones. Shares no code with the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::testing {

// Fields one after the other, little-endian.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& Add(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
    return *this;
  }
  GgufBytes& AddString(std::string_view text) {
    Add<uint64_t>(text.size());
    return AddRaw(std::as_bytes(std::span(text)));
  }
  GgufBytes& AddRaw(std::span<const std::byte> raw) {
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    return *this;
  }
  void PadTo(size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(std::byte{0});
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class GgufBuilder {
 public:
  GgufBuilder& String(std::string_view key, std::string_view value) { return Key(key, 8, [&] { entries_.AddString(value); }); }
  GgufBuilder& U32(std::string_view key, uint32_t value) { return Key(key, 4, [&] { entries_.Add(value); }); }
  GgufBuilder& U64(std::string_view key, uint64_t value) { return Key(key, 10, [&] { entries_.Add(value); }); }
  GgufBuilder& I8(std::string_view key, int8_t value) { return Key(key, 1, [&] { entries_.Add(value); }); }
  GgufBuilder& F32(std::string_view key, float value) { return Key(key, 6, [&] { entries_.Add(value); }); }
  GgufBuilder& F64(std::string_view key, double value) { return Key(key, 12, [&] { entries_.Add(value); }); }
  GgufBuilder& Bool(std::string_view key, uint8_t value) { return Key(key, 7, [&] { entries_.Add(value); }); }
  GgufBuilder& Strings(std::string_view key, const std::vector<std::string>& values) {
    return Key(key, 9, [&] {
      entries_.Add<uint32_t>(8).Add<uint64_t>(values.size());
      for (const std::string& value : values) entries_.AddString(value);
    });
  }
  // An array of a fixed-size type; `type` is GGUF's number of T.
  template <class T>
  GgufBuilder& Array(std::string_view key, uint32_t type, const std::vector<T>& values) {
    return Key(key, 9, [&] {
      entries_.Add<uint32_t>(type).Add<uint64_t>(values.size());
      for (T value : values) entries_.Add(value);
    });
  }
  // A tensor whose data is appended at the next multiple of the alignment.
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, std::span<const std::byte> data) {
    data_.PadTo(alignment_);
    return TensorAt(name, dims, type, data_.bytes().size(), data);
  }
  // The same with an offset of the caller's choice in the directory.
  GgufBuilder& TensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                        std::span<const std::byte> data) {
    tensors_.AddString(name).Add<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) tensors_.Add(dim);
    tensors_.Add(type).Add(offset);
    data_.AddRaw(data);
    ++num_tensors_;
    return *this;
  }
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, const std::vector<float>& values) {
    return Tensor(name, dims, /*type=*/0, std::as_bytes(std::span(values)));
  }
  // Writes general.alignment too.
  GgufBuilder& Alignment(uint32_t alignment) {
    alignment_ = alignment;
    return U32("general.alignment", alignment);
  }

  std::vector<std::byte> Build(uint32_t version = 3) const {
    GgufBytes file;
    file.Add<uint32_t>(0x46554747).Add(version).Add(num_tensors_).Add(num_entries_);
    file.AddRaw(entries_.bytes()).AddRaw(tensors_.bytes());
    if (num_tensors_ > 0) file.PadTo(alignment_);
    file.AddRaw(data_.bytes());
    return file.bytes();
  }

 private:
  template <class Fn>
  GgufBuilder& Key(std::string_view key, uint32_t type, Fn&& write_value) {
    entries_.AddString(key).Add(type);
    write_value();
    ++num_entries_;
    return *this;
  }

  GgufBytes entries_, tensors_, data_;
  uint64_t num_entries_ = 0, num_tensors_ = 0;
  size_t alignment_ = 32;
};

}  // namespace oscar::testing
