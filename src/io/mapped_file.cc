#include "src/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace oscar::io {

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  const auto system_error = [&] {
    return Status(errno == ENOENT || errno == ENOTDIR ? StatusCode::kNotFound : StatusCode::kIoError,
                  path.string() + ": " + std::strerror(errno));
  };
  // O_NONBLOCK: opening a FIFO without a writer must answer, not wait.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error();
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } const closer{descriptor};

  struct stat info;
  if (fstat(descriptor, &info) != 0) return system_error();
  if (S_ISDIR(info.st_mode)) return {StatusCode::kInvalidArgument, path.string() + ": is a folder, not a file"};
  if (!S_ISREG(info.st_mode)) return {StatusCode::kInvalidArgument, path.string() + ": is not a regular file"};

  MappedFile file;
  if (info.st_size == 0) return file;
  const auto size = static_cast<std::size_t>(info.st_size);
  // Shared and read-only: every process that has the same model open uses the same physical pages.
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return system_error();
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace oscar::io
