#include "src/base/buffer.h"

#include <sys/mman.h>

#include <utility>

#include "src/base/status_macros.h"

namespace oscar::base {

Result<Buffer> Buffer::Allocate(std::size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return {StatusCode::kResourceExhausted, "cannot allocate " + std::to_string(bytes) + " bytes"};
  }
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}

Status Buffer::GrowTo(std::size_t bytes) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  if (size_ >= bytes) return {};
  *this = Buffer();  // first give back, then take
  OSCAR_ASSIGN_OR_RETURN(*this, Allocate((bytes + kStep - 1) / kStep * kStep));
  return {};
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace oscar::base
