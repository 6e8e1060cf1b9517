// Buffer: an owner of aligned bytes. Large buffers come zeroed from the system page by page, so an allocated pool costs
// memory only where it has been written.
#pragma once

#include <cstddef>
#include <span>

#include "oscar/result.h"

namespace oscar::base {

class Buffer {
 public:
  Buffer() = default;
  // Zero-filled, aligned to 64 bytes at least. kResourceExhausted when the system refuses. bytes = 0 is an empty buffer.
  static Result<Buffer> Allocate(std::size_t bytes);
  // At least `bytes`, a multiple of 1 MiB; a buffer that is large enough stays, of another the content is lost. Errors as Allocate.
  Status GrowTo(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace oscar::base
