#include "src/io/gguf.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "src/base/status_macros.h"

namespace oscar::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the reader copies little-endian fields");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxNameBytes = 64 * 1024;
// Larger than any vocabulary or merge list; bounds the memory that widening an array of bytes to int64 can take.
constexpr uint64_t kMaxArrayLength = uint64_t{1} << 24;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMaxDims = 4;
constexpr uint32_t kEndOfTypes = 1024;
// Smallest encodings: a key is a length, a type and one byte; a tensor a length, n_dims, one dim, a type and an offset.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// Value types of the GGUF specification.
enum ValueType : uint32_t {
  kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5, kFloat32 = 6,
  kBool = 7, kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11, kFloat64 = 12,
};

// A name from the file as it may stand in a message: short, printable, quoted.
std::string Quoted(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string text = "\"";
  for (char c : name.substr(0, kShown)) text += (c >= 0x20 && c < 0x7F && c != '"') ? c : '?';
  if (name.size() > kShown) text += "...";
  return text + '"';
}

Status Corrupt(std::string message) { return {StatusCode::kCorruptData, std::move(message)}; }

// Reads fields one after the other; every length is compared with the bytes that are left before anything is allocated.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }
  std::string At() const { return " at byte offset " + std::to_string(offset_); }

  template <class T>
  Result<T> Read(std::string_view what) {
    if (remaining() < sizeof(T)) {
      return Corrupt(std::string(what) + " needs " + std::to_string(sizeof(T)) + " bytes, but " + std::to_string(remaining()) +
                     " are left" + At());
    }
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }

  Result<std::string> ReadString(std::string_view what, uint64_t max_bytes) {
    OSCAR_ASSIGN_OR_RETURN(const uint64_t size, Read<uint64_t>(what));
    if (size > max_bytes) {
      return Corrupt(std::string(what) + " has a length of " + std::to_string(size) + " bytes, more than the limit of " +
                     std::to_string(max_bytes) + "," + At());
    }
    if (size > remaining()) {
      return Corrupt(std::string(what) + " has a length of " + std::to_string(size) + " bytes, but " +
                     std::to_string(remaining()) + " are left" + At());
    }
    std::string text(reinterpret_cast<const char*>(bytes_.data() + offset_), size);
    offset_ += size;
    return text;
  }

  // That `count` items of at least `min_bytes` each can follow.
  Status CheckCount(uint64_t count, uint64_t min_bytes, std::string_view what) const {
    if (count > remaining() / min_bytes) {
      return Corrupt(std::to_string(count) + " " + std::string(what) + " need at least " + std::to_string(min_bytes) +
                     " bytes each, but " + std::to_string(remaining()) + " bytes are left" + At());
    }
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t offset_ = 0;
};

// Calls fn with a value of the C++ type of a fixed-size GGUF type; false for strings, arrays and unknown types.
template <class Fn>
bool WithFixedType(uint32_t type, Fn&& fn) {
  switch (type) {
    case kUint8: fn(uint8_t{}); return true;
    case kInt8: fn(int8_t{}); return true;
    case kUint16: fn(uint16_t{}); return true;
    case kInt16: fn(int16_t{}); return true;
    case kUint32: fn(uint32_t{}); return true;
    case kInt32: fn(int32_t{}); return true;
    case kFloat32: fn(float{}); return true;
    case kUint64: fn(uint64_t{}); return true;
    case kInt64: fn(int64_t{}); return true;
    case kFloat64: fn(double{}); return true;
    case kBool: fn(bool{}); return true;
    default: return false;
  }
}

// The type that a stored type is widened to: bool, int64_t or double.
template <class T>
using Widened = std::conditional_t<std::is_same_v<T, bool>, bool, std::conditional_t<std::is_integral_v<T>, int64_t, double>>;

template <class T>
Result<Widened<T>> ReadWidened(FieldReader& reader, std::string_view what) {
  if constexpr (std::is_same_v<T, bool>) {
    OSCAR_ASSIGN_OR_RETURN(const uint8_t byte, reader.Read<uint8_t>(what));
    if (byte > 1) {
      return Corrupt(std::string(what) + " is a bool with the value " + std::to_string(byte) + reader.At());
    }
    return byte == 1;
  } else {
    OSCAR_ASSIGN_OR_RETURN(const T value, reader.Read<T>(what));
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Corrupt(std::string(what) + " is the integer " + std::to_string(value) + ", above 2^63 - 1," + reader.At());
      }
    }
    return static_cast<Widened<T>>(value);
  }
}

Result<GgufMetadata::Value> ReadArray(FieldReader& reader, std::string_view what) {
  OSCAR_ASSIGN_OR_RETURN(const uint32_t type, reader.Read<uint32_t>(what));
  OSCAR_ASSIGN_OR_RETURN(const uint64_t length, reader.Read<uint64_t>(what));
  if (type == kArray) {
    return {StatusCode::kUnsupported, std::string(what) + " is an array of arrays, which is not supported," + reader.At()};
  }
  if (length > kMaxArrayLength) {
    return Corrupt(std::string(what) + " is an array of " + std::to_string(length) + " elements, more than the limit of " +
                   std::to_string(kMaxArrayLength) + "," + reader.At());
  }
  if (type == kString) {
    if (Status status = reader.CheckCount(length, sizeof(uint64_t), "strings"); !status.ok()) return status.WithContext(what);
    std::vector<std::string> values;
    values.reserve(length);
    for (uint64_t i = 0; i < length; ++i) {
      OSCAR_ASSIGN_OR_RETURN(std::string text, reader.ReadString(what, reader.remaining()));
      values.push_back(std::move(text));
    }
    return GgufMetadata::Value(std::move(values));
  }
  Result<GgufMetadata::Value> result(StatusCode::kCorruptData, "unset");
  const bool known = WithFixedType(type, [&]<class T>(T) {
    result = [&]() -> Result<GgufMetadata::Value> {
      if (Status status = reader.CheckCount(length, sizeof(T), "elements"); !status.ok()) return status.WithContext(what);
      std::vector<Widened<T>> values;
      values.reserve(length);
      for (uint64_t i = 0; i < length; ++i) {
        OSCAR_ASSIGN_OR_RETURN(const Widened<T> value, ReadWidened<T>(reader, what));
        values.push_back(value);
      }
      return GgufMetadata::Value(std::move(values));
    }();
  });
  if (!known) return Corrupt(std::string(what) + " is an array of the unknown type " + std::to_string(type) + reader.At());
  return result;
}

Result<GgufMetadata::Value> ReadValue(FieldReader& reader, std::string_view what) {
  OSCAR_ASSIGN_OR_RETURN(const uint32_t type, reader.Read<uint32_t>(what));
  if (type == kArray) return ReadArray(reader, what);
  if (type == kString) {
    OSCAR_ASSIGN_OR_RETURN(std::string text, reader.ReadString(what, reader.remaining()));
    return GgufMetadata::Value(std::move(text));
  }
  Result<GgufMetadata::Value> result(StatusCode::kCorruptData, "unset");
  const bool known = WithFixedType(type, [&]<class T>(T) {
    result = [&]() -> Result<GgufMetadata::Value> {
      OSCAR_ASSIGN_OR_RETURN(const Widened<T> value, ReadWidened<T>(reader, what));
      return GgufMetadata::Value(value);
    }();
  });
  if (!known) return Corrupt(std::string(what) + " has the unknown type " + std::to_string(type) + reader.At());
  return result;
}

Result<GgufMetadata> ReadMetadata(FieldReader& reader, uint64_t count) {
  OSCAR_TRY(reader.CheckCount(count, kMinEntryBytes, "metadata entries"));
  GgufMetadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t start = reader.offset();
    OSCAR_ASSIGN_OR_RETURN(std::string key, reader.ReadString("key " + std::to_string(i), kMaxNameBytes));
    if (key.empty()) return Corrupt("key " + std::to_string(i) + " is empty at byte offset " + std::to_string(start));
    if (metadata.Has(key)) {
      return Corrupt("key " + Quoted(key) + " occurs a second time at byte offset " + std::to_string(start));
    }
    OSCAR_ASSIGN_OR_RETURN(GgufMetadata::Value value, ReadValue(reader, "key " + Quoted(key)));
    metadata.Set(std::move(key), std::move(value));
  }
  return metadata;
}

Result<GgufTensor> ReadTensor(FieldReader& reader, uint64_t index) {
  GgufTensor tensor;
  OSCAR_ASSIGN_OR_RETURN(tensor.name, reader.ReadString("name of tensor " + std::to_string(index), kMaxNameBytes));
  if (tensor.name.empty()) return Corrupt("tensor " + std::to_string(index) + " has an empty name" + reader.At());
  const std::string what = "tensor " + Quoted(tensor.name);
  OSCAR_ASSIGN_OR_RETURN(const uint32_t num_dims, reader.Read<uint32_t>(what));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return Corrupt(what + " has " + std::to_string(num_dims) + " dimensions instead of 1 to 4" + reader.At());
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    OSCAR_ASSIGN_OR_RETURN(const uint64_t dim, reader.Read<uint64_t>(what));
    if (dim == 0) return Corrupt(what + " has a dimension of size 0" + reader.At());
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / elements) {
      return Corrupt(what + " has more than 2^63 - 1 elements" + reader.At());
    }
    elements *= dim;
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }
  OSCAR_ASSIGN_OR_RETURN(tensor.ggml_type, reader.Read<uint32_t>(what));
  if (tensor.ggml_type >= kEndOfTypes) {
    return Corrupt(what + " has the impossible type " + std::to_string(tensor.ggml_type) + reader.At());
  }
  OSCAR_ASSIGN_OR_RETURN(tensor.offset, reader.Read<uint64_t>(what));
  return tensor;
}

Result<uint64_t> ReadAlignment(const GgufMetadata& metadata) {
  OSCAR_ASSIGN_OR_RETURN(const int64_t stored, metadata.IntegerOr("general.alignment", kDefaultAlignment));
  const auto alignment = static_cast<uint64_t>(stored);
  if (stored < 1 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
    return Corrupt("general.alignment is " + std::to_string(stored) + ", not a power of two from 1 to " +
                   std::to_string(kMaxAlignment));
  }
  return alignment;
}

template <class T>
std::string_view TypeText() {
  if constexpr (std::is_same_v<T, bool>) return "a bool";
  else if constexpr (std::is_same_v<T, int64_t>) return "an integer";
  else if constexpr (std::is_same_v<T, double>) return "a number";
  else if constexpr (std::is_same_v<T, std::string>) return "a string";
  else if constexpr (std::is_same_v<T, std::vector<bool>>) return "an array of bools";
  else if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "an array of integers";
  else if constexpr (std::is_same_v<T, std::vector<double>>) return "an array of floats";
  else return "an array of strings";
}

// The stored value as T; kNotFound or kCorruptData naming the key.
template <class T>
Result<const T*> Get(const GgufMetadata& metadata, std::string_view key) {
  const GgufMetadata::Value* value = metadata.Find(key);
  if (value == nullptr) return {StatusCode::kNotFound, "metadata key " + Quoted(key) + " is missing"};
  if (const T* typed = std::get_if<T>(value)) return typed;
  const std::string_view found = std::visit([]<class V>(const V&) { return TypeText<V>(); }, *value);
  return Corrupt("metadata key " + Quoted(key) + " is " + std::string(found) + " instead of " + std::string(TypeText<T>()));
}

}  // namespace

void GgufMetadata::Set(std::string key, Value value) { entries_.insert_or_assign(std::move(key), std::move(value)); }

const GgufMetadata::Value* GgufMetadata::Find(std::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second;
}

Result<std::string> GgufMetadata::String(std::string_view key) const {
  OSCAR_ASSIGN_OR_RETURN(const std::string* value, Get<std::string>(*this, key));
  return *value;
}
Result<int64_t> GgufMetadata::Integer(std::string_view key) const {
  OSCAR_ASSIGN_OR_RETURN(const int64_t* value, Get<int64_t>(*this, key));
  return *value;
}
Result<double> GgufMetadata::Double(std::string_view key) const {
  const Value* value = Find(key);
  if (value != nullptr && std::holds_alternative<int64_t>(*value)) return static_cast<double>(std::get<int64_t>(*value));
  OSCAR_ASSIGN_OR_RETURN(const double* number, Get<double>(*this, key));
  return *number;
}
Result<bool> GgufMetadata::Bool(std::string_view key) const {
  OSCAR_ASSIGN_OR_RETURN(const bool* value, Get<bool>(*this, key));
  return *value;
}
Result<std::span<const std::string>> GgufMetadata::Strings(std::string_view key) const {
  OSCAR_ASSIGN_OR_RETURN(const auto* values, Get<std::vector<std::string>>(*this, key));
  return std::span(*values);
}
Result<std::span<const int64_t>> GgufMetadata::Integers(std::string_view key) const {
  OSCAR_ASSIGN_OR_RETURN(const auto* values, Get<std::vector<int64_t>>(*this, key));
  return std::span(*values);
}
Result<std::span<const double>> GgufMetadata::Doubles(std::string_view key) const {
  OSCAR_ASSIGN_OR_RETURN(const auto* values, Get<std::vector<double>>(*this, key));
  return std::span(*values);
}
Result<std::string> GgufMetadata::StringOr(std::string_view key, std::string_view fallback) const {
  return Has(key) ? String(key) : Result<std::string>(std::string(fallback));
}
Result<int64_t> GgufMetadata::IntegerOr(std::string_view key, int64_t fallback) const {
  return Has(key) ? Integer(key) : Result<int64_t>(fallback);
}
Result<double> GgufMetadata::DoubleOr(std::string_view key, double fallback) const {
  return Has(key) ? Double(key) : Result<double>(fallback);
}
Result<bool> GgufMetadata::BoolOr(std::string_view key, bool fallback) const {
  return Has(key) ? Bool(key) : Result<bool>(fallback);
}

int64_t GgufTensor::num_elements() const {
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;
  return product;
}

Result<GgufFile> GgufFile::Open(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  Result<GgufFile> parsed = Parse(mapped.bytes());
  if (!parsed.ok()) return parsed.status().WithContext(path.string());
  GgufFile file = std::move(parsed).value();
  file.file_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes) {
  FieldReader reader(bytes);
  OSCAR_ASSIGN_OR_RETURN(const uint32_t magic, reader.Read<uint32_t>("magic"));
  if (magic != kMagic) return Corrupt("not a GGUF file: the first four bytes are not \"GGUF\"");
  GgufFile file;
  OSCAR_ASSIGN_OR_RETURN(file.version_, reader.Read<uint32_t>("version"));
  if (file.version_ != 2 && file.version_ != 3) {
    const bool big_endian = (file.version_ & 0xFFFF) == 0 && file.version_ != 0;
    return {StatusCode::kUnsupported, big_endian ? "big-endian GGUF files are not supported"
                                                 : "GGUF version " + std::to_string(file.version_) +
                                                       " is not supported, only 2 and 3 are"};
  }
  OSCAR_ASSIGN_OR_RETURN(const uint64_t num_tensors, reader.Read<uint64_t>("tensor count"));
  OSCAR_ASSIGN_OR_RETURN(const uint64_t num_entries, reader.Read<uint64_t>("metadata count"));
  OSCAR_ASSIGN_OR_RETURN(file.metadata_, ReadMetadata(reader, num_entries));
  OSCAR_ASSIGN_OR_RETURN(const uint64_t alignment, ReadAlignment(file.metadata_));

  OSCAR_TRY(reader.CheckCount(num_tensors, kMinTensorBytes, "tensors"));
  file.tensors_.reserve(num_tensors);
  for (uint64_t i = 0; i < num_tensors; ++i) {
    OSCAR_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(reader, i));
    if (!file.tensor_index_.emplace(tensor.name, file.tensors_.size()).second) {
      return Corrupt("tensor " + Quoted(tensor.name) + " occurs a second time" + reader.At());
    }
    file.tensors_.push_back(std::move(tensor));
  }

  const uint64_t padding = (alignment - reader.offset() % alignment) % alignment;
  if (padding <= reader.remaining()) file.data_ = bytes.subspan(reader.offset() + padding);
  for (const GgufTensor& tensor : file.tensors_) {
    if (tensor.offset % alignment != 0) {
      return Corrupt("tensor " + Quoted(tensor.name) + " has the offset " + std::to_string(tensor.offset) +
                     ", not a multiple of the alignment " + std::to_string(alignment));
    }
    if (tensor.offset >= file.data_.size()) {
      return Corrupt("tensor " + Quoted(tensor.name) + " begins at byte " + std::to_string(tensor.offset) +
                     " of a data section of " + std::to_string(file.data_.size()) + " bytes: the file is cut off");
    }
  }
  return file;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

Result<std::span<const std::byte>> GgufFile::TensorBytes(const GgufTensor& tensor, uint64_t num_bytes) const {
  if (tensor.offset > data_.size() || num_bytes > data_.size() - tensor.offset) {
    return Corrupt("tensor " + Quoted(tensor.name) + " needs " + std::to_string(num_bytes) + " bytes from byte " +
                   std::to_string(tensor.offset) + " of a data section of " + std::to_string(data_.size()) +
                   " bytes: the file is cut off");
  }
  return data_.subspan(tensor.offset, num_bytes);
}

}  // namespace oscar::io
