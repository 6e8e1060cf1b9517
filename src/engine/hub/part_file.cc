#include "src/engine/hub/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "src/base/status_macros.h"
#include "src/engine/hub/http_fields.h"
#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

constexpr size_t kReadBytes = 1 << 20;

Status IoError(const std::filesystem::path& path) {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT) {
    return Status(StatusCode::kIoError, fmt::format("{}: the disk is full", path.string()));
  }
  return Status(StatusCode::kIoError, fmt::format("{}: {}", path.string(), std::strerror(error)));
}

// The lock belongs to an inode: after another process published or removed it, the name means another file.
bool IsStillNamed(int descriptor, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

void SyncDirectory(const std::filesystem::path& directory) {
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);  // best effort: some file systems refuse it for directories, and the rename itself has happened
  close(descriptor);
}

}  // namespace

PartFile::PartFile(std::filesystem::path target, int descriptor)
    : target_(std::move(target)), path_(target_), record_path_(target_), descriptor_(descriptor) {
  path_ += ".part";
  record_path_ += ".part.json";
}

PartFile::PartFile(PartFile&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::move(other.path_)),
      record_path_(std::move(other.record_path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      record_(std::move(other.record_)),
      hash_(std::move(other.hash_)) {}

PartFile::~PartFile() {
  if (descriptor_ < 0) return;
  if (size_ == 0 && IsStillNamed(descriptor_, path_)) Remove();
  close(descriptor_);
}

Result<PartFile> PartFile::Open(const std::filesystem::path& target) {
  std::filesystem::path path = target;
  path += ".part";
  while (true) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor < 0) return IoError(path);
    PartFile part(target, descriptor);
    part.size_ = 1;  // not known to be empty yet, and not ours to remove before the lock is
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return IoError(path);
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("{}: another pull is writing this file; wait until it is done", path.string()));
    }
    if (!IsStillNamed(descriptor, path)) continue;
    struct stat info {};
    if (fstat(descriptor, &info) != 0) return IoError(path);
    if (!S_ISREG(info.st_mode)) {
      return Status(StatusCode::kIoError, fmt::format("{}: not a regular file", path.string()));
    }
    part.size_ = static_cast<uint64_t>(info.st_size);
    if (lseek(descriptor, 0, SEEK_END) < 0) return IoError(path);
    part.ReadRecord();
    return part;
  }
}

void PartFile::ReadRecord() {
  const Result<nlohmann::json> read = io::ReadJsonFile(record_path_);
  if (!read.ok() || !read->is_object()) return;
  const nlohmann::json& json = *read;
  const auto field = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  record_.url = field("url");
  record_.etag = StrongEtag(field("etag"));
  record_.sha256 = Sha256FromHex(field("sha256"));
  const auto total = json.find("total_bytes");
  if (total != json.end() && total->is_number_unsigned()) record_.total_bytes = total->get<uint64_t>();
}

Status PartFile::HashExisting(const std::atomic<bool>* cancelled) {
  std::vector<std::byte> bytes(kReadBytes);
  hash_ = std::make_unique<base::Sha256>();
  for (uint64_t offset = 0; offset < size_;) {
    if (cancelled != nullptr && cancelled->load()) return Status(StatusCode::kCancelled, path_.string() + ": cancelled");
    const ssize_t num_read = pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return IoError(path_);
    if (num_read == 0) return Status(StatusCode::kIoError, path_.string() + ": became shorter while it was read");
    hash_->Update(std::span(bytes).first(static_cast<size_t>(num_read)));
    offset += static_cast<uint64_t>(num_read);
  }
  return Status();
}

Status PartFile::Restart() {
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) < 0) return IoError(path_);
  size_ = 0;
  hash_ = std::make_unique<base::Sha256>();
  record_ = PartRecord();
  std::error_code ignored;  // a stale record next to no bytes is harmless
  std::filesystem::remove(record_path_, ignored);
  return Status();
}

Status PartFile::WriteRecord(const PartRecord& record) {
  nlohmann::json json = {{"url", record.url}, {"etag", record.etag}, {"sha256", record.sha256}};
  if (record.total_bytes) json["total_bytes"] = *record.total_bytes;
  OSCAR_TRY(io::WriteJsonFile(record_path_, json));
  record_ = record;
  return Status();
}

Status PartFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t num_written = write(descriptor_, bytes.data(), bytes.size());
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0) return IoError(path_);
    const auto written = bytes.first(static_cast<size_t>(num_written));
    hash_->Update(written);
    size_ += written.size();
    bytes = bytes.subspan(written.size());
  }
  return Status();
}

std::string PartFile::FinishHash() { return base::HexFromDigest(hash_->Finish()); }

Status PartFile::Publish() {
  if (fsync(descriptor_) != 0) return IoError(path_);
  if (rename(path_.c_str(), target_.c_str()) != 0) return IoError(target_);
  std::error_code ignored;  // a record without its part file is overwritten by the next pull
  std::filesystem::remove(record_path_, ignored);
  SyncDirectory(target_.parent_path());
  return Status();
}

void PartFile::Remove() {
  std::error_code ignored;  // nothing can be done about files that stay; the next Open finds them
  std::filesystem::remove(record_path_, ignored);
  std::filesystem::remove(path_, ignored);
}

}  // namespace oscar::engine
