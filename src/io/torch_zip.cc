#include "src/io/torch_zip.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/status_macros.h"

namespace oscar::io {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDataDescriptor = 0x08074b50, kDirectoryEntry = 0x02014b50;
constexpr uint32_t kZip64End = 0x06064b50, kZip64Locator = 0x07064b50, kEnd = 0x06054b50;
constexpr std::size_t kLocalHeaderBytes = 30, kDirectoryEntryBytes = 46, kEndBytes = 22, kZip64LocatorBytes = 20, kZip64EndBytes = 56;
constexpr std::size_t kPayloadAlignment = 64;
constexpr uint16_t kFlagEncrypted = 0x0001, kFlagsWritten = 0x0808;  // UTF-8 names, data descriptors

Status Corrupt(std::string why) { return {StatusCode::kCorruptData, "torch archive: " + std::move(why)}; }

uint32_t Crc32(std::span<const std::byte> bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
      made[i] = value;
    }
    return made;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ table[(crc ^ std::to_integer<uint32_t>(byte)) & 0xFF];
  return ~crc;
}

template <class T>
T Load(std::span<const std::byte> bytes, std::size_t at) {  // the caller has checked the size
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <class T>
void Put(std::vector<std::byte>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

struct Directory {
  uint64_t num_entries = 0, bytes = 0, start = 0, end_of_directory = 0;
};

// From the end records; the zip64 one counts where it is present.
Result<Directory> FindDirectory(std::span<const std::byte> bytes) {
  if (bytes.size() < kEndBytes || Load<uint32_t>(bytes, bytes.size() - kEndBytes) != kEnd) {
    return Corrupt("the file does not end with an end record: truncated, or not a zip");
  }
  const std::size_t end = bytes.size() - kEndBytes;
  Directory directory{Load<uint16_t>(bytes, end + 10), Load<uint32_t>(bytes, end + 12), Load<uint32_t>(bytes, end + 16), end};
  if (end >= kZip64LocatorBytes && Load<uint32_t>(bytes, end - kZip64LocatorBytes) == kZip64Locator) {
    const uint64_t at = Load<uint64_t>(bytes, end - kZip64LocatorBytes + 8);
    if (end < kZip64LocatorBytes + kZip64EndBytes || at != end - kZip64LocatorBytes - kZip64EndBytes ||
        Load<uint32_t>(bytes, at) != kZip64End) {
      return Corrupt("the zip64 end record is not where its locator says");
    }
    directory = {Load<uint64_t>(bytes, at + 32), Load<uint64_t>(bytes, at + 40), Load<uint64_t>(bytes, at + 48), at};
  }
  if (directory.start > directory.end_of_directory || directory.bytes != directory.end_of_directory - directory.start) {
    return Corrupt("the central directory does not end at the end record");
  }
  return directory;
}

struct RawEntry {
  std::string name;
  std::span<const std::byte> payload;
};

// The entry whose directory record begins at `at`; moves `at` behind it.
Result<RawEntry> ReadEntry(std::span<const std::byte> bytes, const Directory& directory, uint64_t& at) {
  if (directory.end_of_directory - at < kDirectoryEntryBytes || Load<uint32_t>(bytes, at) != kDirectoryEntry) {
    return Corrupt("the central directory holds something that is no entry");
  }
  const auto flags = Load<uint16_t>(bytes, at + 8), method = Load<uint16_t>(bytes, at + 10);
  const auto crc = Load<uint32_t>(bytes, at + 16);
  const uint64_t packed = Load<uint32_t>(bytes, at + 20), size = Load<uint32_t>(bytes, at + 24), local = Load<uint32_t>(bytes, at + 42);
  const std::size_t name_bytes = Load<uint16_t>(bytes, at + 28);
  const std::size_t tail = name_bytes + Load<uint16_t>(bytes, at + 30) + Load<uint16_t>(bytes, at + 32);
  if (directory.end_of_directory - at - kDirectoryEntryBytes < tail) return Corrupt("an entry of the central directory is cut off");
  RawEntry entry;
  entry.name.assign(reinterpret_cast<const char*>(bytes.data() + at + kDirectoryEntryBytes), name_bytes);
  const std::string quoted = "entry \"" + entry.name.substr(0, 80) + "\"";
  at += kDirectoryEntryBytes + tail;
  if (method != 0 || (flags & kFlagEncrypted) != 0) {
    return Status(StatusCode::kUnsupported, "torch archive: " + quoted + " is compressed or encrypted");
  }
  if (packed != size || size == 0xFFFFFFFFu || local == 0xFFFFFFFFu) return Corrupt(quoted + " has impossible sizes");
  if (local > directory.start || directory.start - local < kLocalHeaderBytes || Load<uint32_t>(bytes, local) != kLocalHeader) {
    return Corrupt(quoted + " has no local header where the directory says");
  }
  const uint64_t payload = local + kLocalHeaderBytes + Load<uint16_t>(bytes, local + 26) + Load<uint16_t>(bytes, local + 28);
  if (payload > directory.start || directory.start - payload < size) return Corrupt(quoted + " reaches beyond the file");
  entry.payload = bytes.subspan(payload, size);
  if (Crc32(entry.payload) != crc) return Corrupt(quoted + " has another CRC than the directory says: the file is damaged");
  return entry;
}

}  // namespace

Result<TorchZip> TorchZip::Parse(std::span<const std::byte> bytes) {
  OSCAR_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes));
  if (directory.num_entries > directory.bytes / kDirectoryEntryBytes) return Corrupt("more entries than the directory can hold");
  TorchZip zip;
  uint64_t at = directory.start;
  for (uint64_t i = 0; i < directory.num_entries; ++i) {
    OSCAR_ASSIGN_OR_RETURN(const RawEntry entry, ReadEntry(bytes, directory, at));
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos || slash == 0) return Corrupt("entry \"" + entry.name.substr(0, 80) + "\" lies in no folder");
    if (i == 0) zip.root_ = entry.name.substr(0, slash);
    if (entry.name.substr(0, slash) != zip.root_) return Corrupt("entries lie in more than one folder");
    zip.entries_.emplace_back(entry.name.substr(slash + 1), entry.payload);
  }
  if (at != directory.end_of_directory) return Corrupt("bytes behind the last entry of the central directory");
  std::sort(zip.entries_.begin(), zip.entries_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 1; i < zip.entries_.size(); ++i) {
    if (zip.entries_[i].first == zip.entries_[i - 1].first) return Corrupt("two entries are named \"" + zip.entries_[i].first.substr(0, 80) + "\"");
  }
  if (const auto order = zip.Entry("byteorder"); order.ok()) {
    const std::string text(reinterpret_cast<const char*>(order->data()), order->size());
    if (text != "little") return Status(StatusCode::kUnsupported, "torch archive: byte order \"" + text.substr(0, 20) + "\"; only little is read");
  }
  return zip;
}

Result<std::span<const std::byte>> TorchZip::Entry(std::string_view name) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), name, [](const auto& entry, std::string_view key) { return entry.first < key; });
  if (found == entries_.end() || found->first != name) {
    return Status(StatusCode::kNotFound, "torch archive: no entry \"" + root_.substr(0, 80) + "/" + std::string(name).substr(0, 80) + "\"");
  }
  return found->second;
}

std::vector<std::byte> WriteTorchZip(const std::string& root, const std::vector<std::pair<std::string, std::vector<std::byte>>>& entries) {
  std::vector<std::byte> out, directory;
  const auto put_text = [](std::vector<std::byte>& to, const std::string& text) {
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    to.insert(to.end(), bytes, bytes + text.size());
  };
  for (const auto& [name, payload] : entries) {
    const std::string path = root + "/" + name;
    const auto offset = static_cast<uint32_t>(out.size());
    const auto size = static_cast<uint32_t>(payload.size());
    const uint32_t crc = Crc32(payload);
    // Extra field "FB": as many 'Z' as bring the payload to a multiple of 64 bytes, 64 rather than none.
    const std::size_t start = out.size() + kLocalHeaderBytes + path.size() + 4;
    const std::size_t padding = kPayloadAlignment - start % kPayloadAlignment;
    Put(out, kLocalHeader);
    for (uint16_t field : {uint16_t{0}, kFlagsWritten, uint16_t{0}, uint16_t{0}, uint16_t{0}}) Put(out, field);  // version .. date
    for (int i = 0; i < 3; ++i) Put(out, uint32_t{0});                                                           // CRC and sizes follow
    Put(out, static_cast<uint16_t>(path.size()));
    Put(out, static_cast<uint16_t>(4 + padding));
    put_text(out, path + "FB");
    Put(out, static_cast<uint16_t>(padding));
    out.insert(out.end(), padding, std::byte{'Z'});
    out.insert(out.end(), payload.begin(), payload.end());
    for (uint32_t field : {kDataDescriptor, crc, size, size}) Put(out, field);

    Put(directory, kDirectoryEntry);
    for (uint16_t field : {uint16_t{0}, uint16_t{0}, kFlagsWritten, uint16_t{0}, uint16_t{0}, uint16_t{0}}) Put(directory, field);
    for (uint32_t field : {crc, size, size}) Put(directory, field);
    Put(directory, static_cast<uint16_t>(path.size()));
    for (int i = 0; i < 4; ++i) Put(directory, uint16_t{0});  // extra, comment, disk, internal attributes
    Put(directory, uint32_t{0});
    Put(directory, offset);
    put_text(directory, path);
  }
  const uint64_t start = out.size(), count = entries.size(), bytes = directory.size();
  out.insert(out.end(), directory.begin(), directory.end());
  Put(out, kZip64End);
  Put(out, uint64_t{kZip64EndBytes - 12});
  Put(out, uint16_t{0x031E});
  Put(out, uint16_t{0x002D});
  for (int i = 0; i < 2; ++i) Put(out, uint32_t{0});
  for (uint64_t field : {count, count, bytes, start}) Put(out, field);
  Put(out, kZip64Locator);
  Put(out, uint32_t{0});
  Put(out, start + bytes);
  Put(out, uint32_t{1});
  Put(out, kEnd);
  for (int i = 0; i < 2; ++i) Put(out, uint16_t{0});
  for (int i = 0; i < 2; ++i) Put(out, static_cast<uint16_t>(count));
  Put(out, static_cast<uint32_t>(bytes));
  Put(out, static_cast<uint32_t>(start));
  Put(out, uint16_t{0});
  return out;
}

}  // namespace oscar::io
