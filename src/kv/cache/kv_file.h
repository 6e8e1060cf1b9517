// KV files: the resume points of a prefix cache with their pages (docs/kv-format.md, "KV files"). The reader trusts nothing: a
// SHA-256 over the whole file is checked before any of it is believed, then every count against what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oscar/prefix_cache.h"
#include "oscar/result.h"
#include "src/base/digest.h"
#include "src/io/mapped_file.h"

namespace oscar::cache {

// Files of one key may be loaded into caches of that key, and into no others.
struct KvFileKey {
  base::Sha256Digest digest{};
  std::size_t bf16_page_bytes = 0, encoded_page_bytes = 0;  // all layers
};

struct KvFilePoint {
  std::string space;
  PrefixRetention retention = PrefixRetention::kNormal;
  std::vector<int32_t> tokens;
  // [PagesFor(tokens)] by page index: number of the page among the BF16 or among the encoded pages of the file; which of the two
  // the tier rule says.
  std::vector<uint32_t> pages;
};

struct KvFileContents {
  uint32_t num_bf16_pages = 0, num_encoded_pages = 0;
  std::vector<KvFilePoint> points;
};

// Fills `out` with page `number` of the BF16 or the encoded pages.
using ReadKvPage = std::function<Status(bool encoded, uint32_t number, std::span<std::byte> out)>;
// Atomically; kIoError, kNotFound of the folder, errors of `read`.
Status WriteKvFile(const std::filesystem::path& path, const KvFileKey& key, const KvFileContents& contents, const ReadKvPage& read);

class KvFile {
 public:
  // kCorruptData for anything but a whole, unchanged file; kFailedPrecondition for another key; kNotFound, kIoError.
  static Result<KvFile> Open(const std::filesystem::path& path, const KvFileKey& key);
  const KvFileContents& contents() const { return contents_; }
  // Precondition: the number is below that of the contents.
  std::span<const std::byte> page(bool encoded, uint32_t number) const;

 private:
  KvFile(io::MappedFile file, KvFileKey key) : file_(std::move(file)), key_(key) {}
  Status Parse();

  io::MappedFile file_;
  KvFileKey key_;
  KvFileContents contents_;
  std::size_t first_page_ = 0;  // offset of the pages
};

}  // namespace oscar::cache
