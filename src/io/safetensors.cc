#include "src/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/status_macros.h"
#include "src/io/json_file.h"

namespace oscar::io {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own implementation
constexpr std::size_t kDataAlignment = 64;         // a mapped data section starts at a cache line
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeEntry {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<DtypeEntry, 15> kDtypes = {{{"BOOL", 1},
                                                 {"U8", 1},
                                                 {"I8", 1},
                                                 {"F8_E5M2", 1},
                                                 {"F8_E4M3", 1},
                                                 {"I16", 2},
                                                 {"U16", 2},
                                                 {"F16", 2},
                                                 {"BF16", 2},
                                                 {"I32", 4},
                                                 {"U32", 4},
                                                 {"F32", 4},
                                                 {"F64", 8},
                                                 {"I64", 8},
                                                 {"U64", 8}}};

Status Corrupt(std::string why) { return {StatusCode::kCorruptData, std::move(why)}; }

// Bytes of a tensor, or nothing when the product passes 2^63.
std::optional<uint64_t> TensorByteCount(SafetensorsDtype dtype, std::span<const int64_t> shape) {
  uint64_t product = SafetensorsElementBytes(dtype);
  // A zero makes the whole product zero, whatever the other dimensions are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(product, static_cast<uint64_t>(dimension), &product)) return std::nullopt;
  }
  if (product > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return product;
}

Result<SafetensorsDtype> ParseDtype(const json& value) {
  if (!value.is_string()) return Corrupt("\"dtype\" is not a text");
  const std::string& name = value.get_ref<const std::string&>();
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<SafetensorsDtype>(i);
  }
  return Status(StatusCode::kUnsupported, "dtype \"" + name.substr(0, 40) + "\" is not known");
}

Result<uint64_t> ParseCount(const json& value, std::string_view field) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Corrupt(std::string(field) + " holds something other than a non-negative integer below 2^63");
  }
  return value.get<uint64_t>();
}

struct DataRange {
  uint64_t begin = 0, end = 0;
};

// One entry of the header. `range` gets its place in the data section, checked against the section's size.
Result<SafetensorsTensor> ParseTensor(const std::string& name, const json& entry, uint64_t data_size,
                                      DataRange* range) {
  if (!entry.is_object()) return Corrupt("its description is not an object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(field)) return Corrupt("\"" + std::string(field) + "\" is missing");
  }
  if (entry.size() != 3) return Corrupt("its description has fields other than dtype, shape and data_offsets");
  SafetensorsTensor tensor;
  tensor.name = name;
  OSCAR_ASSIGN_OR_RETURN(tensor.dtype, ParseDtype(entry["dtype"]));
  const json& shape = entry["shape"];
  if (!shape.is_array()) return Corrupt("\"shape\" is not a list");
  for (const json& dimension : shape) {
    OSCAR_ASSIGN_OR_RETURN(const uint64_t count, ParseCount(dimension, "shape"));
    tensor.shape.push_back(static_cast<int64_t>(count));
  }
  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) return Corrupt("\"data_offsets\" is not a pair");
  OSCAR_ASSIGN_OR_RETURN(range->begin, ParseCount(offsets[0], "data_offsets"));
  OSCAR_ASSIGN_OR_RETURN(range->end, ParseCount(offsets[1], "data_offsets"));
  const std::optional<uint64_t> bytes = TensorByteCount(tensor.dtype, tensor.shape);
  if (!bytes.has_value()) return Corrupt("the product of its shape passes 2^63 bytes");
  if (range->begin > range->end || range->end > data_size) {
    return Corrupt("data_offsets [" + std::to_string(range->begin) + ", " + std::to_string(range->end) +
                   "] leave the data section of " + std::to_string(data_size) + " bytes");
  }
  if (range->end - range->begin != *bytes) {
    return Corrupt("data_offsets span " + std::to_string(range->end - range->begin) +
                   " bytes, but dtype and shape need " + std::to_string(*bytes));
  }
  return tensor;
}

Result<std::map<std::string, std::string, std::less<>>> ParseMetadata(const json& entry) {
  if (!entry.is_object()) return Corrupt("\"__metadata__\" is not an object");
  std::map<std::string, std::string, std::less<>> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string())
      return Corrupt("\"__metadata__\": the value of \"" + key.substr(0, 80) + "\" is not a text");
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// The format forbids gaps and overlaps, so that every byte of a file belongs to exactly one tensor.
Status CheckCoverage(std::span<const SafetensorsTensor> tensors, std::span<const DataRange> ranges,
                     uint64_t data_size) {
  std::vector<size_t> order(ranges.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(ranges[a].begin, ranges[a].end) < std::pair(ranges[b].begin, ranges[b].end);
  });
  uint64_t end = 0;
  for (const size_t i : order) {
    if (ranges[i].begin != end) {
      return Corrupt("tensor \"" + tensors[i].name + "\" begins at byte " + std::to_string(ranges[i].begin) +
                     " of the data section, where " + std::to_string(end) +
                     " was expected: tensors overlap or leave a gap");
    }
    end = ranges[i].end;
  }
  if (end != data_size) {
    return Corrupt(std::to_string(data_size - end) + " bytes follow the last tensor");
  }
  return {};
}

}  // namespace

std::size_t SafetensorsElementBytes(SafetensorsDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }
std::string_view SafetensorsDtypeName(SafetensorsDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  OSCAR_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  Result<SafetensorsFile> file = Parse(mapped.bytes());
  if (!file.ok()) return file.status().WithContext(path.string());
  file->file_ = std::move(mapped);  // the mapping keeps its address
  return file;
}

Result<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes)
    return Corrupt("a safetensors file of " + std::to_string(bytes.size()) + " bytes has no header");
  uint64_t header_size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_size |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (header_size > kMaxHeaderBytes) {
    return Corrupt("the header claims " + std::to_string(header_size) + " bytes, above the limit of " +
                   std::to_string(kMaxHeaderBytes) + ": not a safetensors file");
  }
  if (header_size > bytes.size() - kLengthBytes) {
    return Corrupt("the header claims " + std::to_string(header_size) + " bytes, but the file has only " +
                   std::to_string(bytes.size() - kLengthBytes) + " after its length: truncated");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_size);
  if (text.empty() || text.front() != '{') return Corrupt("the header does not begin with \"{\"");
  Result<json> header = ParseJson(text);
  if (!header.ok()) return header.status().WithContext("header");

  SafetensorsFile file;
  file.data_ = bytes.subspan(kLengthBytes + header_size);
  std::vector<DataRange> ranges;
  for (const auto& [name, entry] : header->items()) {
    if (name == kMetadataKey) {
      OSCAR_ASSIGN_OR_RETURN(file.metadata_, ParseMetadata(entry));
      continue;
    }
    DataRange range;
    Result<SafetensorsTensor> tensor = ParseTensor(name, entry, file.data_.size(), &range);
    if (!tensor.ok()) return tensor.status().WithContext("tensor \"" + name.substr(0, 120) + "\"");
    tensor->bytes = file.data_.subspan(range.begin, range.end - range.begin);
    file.tensors_.push_back(std::move(*tensor));
    ranges.push_back(range);
  }
  OSCAR_TRY(CheckCoverage(file.tensors_, ranges, file.data_.size()));
  return file;
}

const SafetensorsTensor* SafetensorsFile::Find(std::string_view name) const {
  // json objects are ordered by key, and so are the tensors taken from one.
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const SafetensorsTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void SafetensorsWriter::SetMetadata(std::string_view key, std::string_view value) {
  metadata_.insert_or_assign(ReplaceInvalidUtf8(key), ReplaceInvalidUtf8(value));
}

Status SafetensorsWriter::Add(std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape,
                              std::span<const std::byte> bytes) {
  const auto invalid = [&](std::string_view why) {
    return Status(StatusCode::kInvalidArgument, "tensor \"" + ReplaceInvalidUtf8(name) + "\": " + std::string(why));
  };
  if (name.empty() || name == kMetadataKey || ReplaceInvalidUtf8(name) != name) return invalid("not a usable name");
  if (tensors_.contains(name)) return invalid("the name is taken");
  if (std::any_of(shape.begin(), shape.end(), [](int64_t dimension) { return dimension < 0; })) {
    return invalid("a dimension is negative");
  }
  const std::optional<uint64_t> size = TensorByteCount(dtype, shape);
  if (!size.has_value() || *size != bytes.size()) return invalid("shape and bytes disagree");
  std::string key = name;
  tensors_.emplace(std::move(key), SafetensorsTensor{std::move(name), dtype, std::move(shape), bytes});
  return {};
}

std::vector<std::byte> SafetensorsWriter::Finish() const {
  json header = json::object();
  if (!metadata_.empty()) {
    for (const auto& [key, value] : metadata_) header[std::string(kMetadataKey)][key] = value;
  }
  std::vector<const SafetensorsTensor*> order;
  for (const auto& [name, tensor] : tensors_) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return SafetensorsElementBytes(a->dtype) > SafetensorsElementBytes(b->dtype);
  });
  uint64_t offset = 0;
  for (const SafetensorsTensor* tensor : order) {
    header[tensor->name] = {{"dtype", SafetensorsDtypeName(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, offset + tensor->bytes.size()}}};
    offset += tensor->bytes.size();
  }
  std::string text = header.dump();
  const std::size_t unpadded = kLengthBytes + text.size();
  text.append((unpadded + kDataAlignment - 1) / kDataAlignment * kDataAlignment - unpadded, ' ');

  std::vector<std::byte> bytes(kLengthBytes + text.size() + offset);
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<std::byte>(text.size() >> (8 * i));
  std::memcpy(bytes.data() + kLengthBytes, text.data(), text.size());
  std::byte* out = bytes.data() + kLengthBytes + text.size();
  for (const SafetensorsTensor* tensor : order) {
    if (!tensor->bytes.empty()) std::memcpy(out, tensor->bytes.data(), tensor->bytes.size());
    out += tensor->bytes.size();
  }
  return bytes;
}

}  // namespace oscar::io
