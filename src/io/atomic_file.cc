#include "src/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

namespace oscar::io {
namespace {

Status SystemError(const std::string& what, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kIoError;
  return {code, what + ": " + std::generic_category().message(error)};
}

// 0, or errno of the first call that failed.
int Write(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return 0;
}

// All parts and a sync. `failed` is set when `next` fails; the result is errno of the first call that did.
int WriteAndSync(int descriptor, const FileParts& next, Status* failed) {
  for (;;) {
    const Result<std::span<const std::byte>> part = next();
    if (!part.ok()) {
      *failed = part.status();
      return 0;
    }
    if (part->empty()) return ::fsync(descriptor) == 0 ? 0 : errno;
    if (const int error = Write(descriptor, *part); error != 0) return error;
  }
}

// Makes the rename itself last. A file system that cannot sync a folder (EINVAL) has nothing to do here.
int SyncFolder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  ::close(descriptor);
  return error;
}

}  // namespace

Status WriteFileAtomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  return WriteFileAtomically(path, [&bytes]() -> Result<std::span<const std::byte>> { return std::exchange(bytes, {}); });
}

Status WriteFileAtomically(const std::filesystem::path& path, const FileParts& next) {
  static std::atomic<unsigned> counter{0};  // two threads that write one path must not share a temporary file
  const std::string target = path.string();
  std::string temporary = target;
  temporary.append(".tmp.").append(std::to_string(::getpid())).append(".").append(std::to_string(counter.fetch_add(1)));
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return SystemError("cannot create " + temporary, errno);
  Status failed;
  int error = WriteAndSync(descriptor, next, &failed);
  if (::close(descriptor) != 0 && error == 0) error = errno;
  if (failed.ok() && error == 0 && std::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (!failed.ok() || error != 0) {
    ::unlink(temporary.c_str());
    if (!failed.ok()) return failed;
    return SystemError("cannot write " + target, error);
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if ((error = SyncFolder(folder)) != 0) return SystemError("cannot sync the folder of " + target, error);
  return {};
}

}  // namespace oscar::io
