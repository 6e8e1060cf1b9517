// MappedFile: a file as read-only memory. Every parser reads from such a span and trusts no length in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "oscar/result.h"

namespace oscar::io {

class MappedFile {
 public:
  // kNotFound or kIoError naming the path. An empty file gives an empty span. A folder is kInvalidArgument.
  static Result<MappedFile> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar::io
