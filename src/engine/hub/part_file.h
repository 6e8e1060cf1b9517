// The unfinished file of a download: NAME.part with the bytes, NAME.part.json with what they are bytes of. Holding a
// PartFile is holding the lock on NAME.part, so two processes cannot write one file. Network matters are not known here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "oscar/result.h"
#include "src/base/digest.h"

namespace oscar::engine {

// What NAME.part.json remembers of the source. Empty fields were not known.
struct PartRecord {
  std::string url;     // without query
  std::string etag;    // strong, with its quotes
  std::string sha256;  // expected, 64 lower-case digits
  std::optional<uint64_t> total_bytes;
};

class PartFile {
 public:
  // Opens or creates `target` + ".part" and locks it (flock, not waited for). kFailedPrecondition: another process or thread
  // holds it. kIoError: the file system. A missing, unreadable or malformed record only means that nothing can be resumed.
  static Result<PartFile> Open(const std::filesystem::path& target);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  // Unlocks; removes the files when they hold no bytes.
  ~PartFile();

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  const PartRecord& record() const { return record_; }

  // Reads the bytes that are there into the running hash; needed once before Append continues them. kIoError, kCancelled.
  Status HashExisting(const std::atomic<bool>* cancelled);
  // Drops all bytes and the record.
  Status Restart();
  // Writes the record, durable before the bytes that follow.
  Status WriteRecord(const PartRecord& record);
  // kIoError names the file and, on a full disk, says so.
  Status Append(std::span<const std::byte> bytes);
  // The SHA-256 of all bytes. Once; Append must not follow.
  std::string FinishHash();
  // Flushes to the disk, moves NAME.part onto the target (replacing it) and removes the record.
  Status Publish();
  // Removes both files.
  void Remove();

 private:
  PartFile(std::filesystem::path target, int descriptor);
  void ReadRecord();

  std::filesystem::path target_;
  std::filesystem::path path_;
  std::filesystem::path record_path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  PartRecord record_;
  std::unique_ptr<base::Sha256> hash_ = std::make_unique<base::Sha256>();
};

}  // namespace oscar::engine
