// Arena: carves typed arrays out of one buffer. Without a buffer it only counts, so that the size query and the carving are
// the same code.
#pragma once

#include <cstddef>
#include <span>

namespace oscar::base {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  Arena() = default;  // counting mode: Take returns nullptr
  // Precondition: large enough for all that is taken, as counted before; starts anywhere.
  explicit Arena(std::span<std::byte> buffer);

  // `count` uninitialised elements on a 64-byte boundary.
  template <class T>
  T* Take(std::size_t count) {
    return reinterpret_cast<T*>(TakeBytes(count * sizeof(T)));
  }
  // Bytes a buffer needs for what was taken, the alignment of its start included.
  std::size_t bytes_needed() const { return used_ + kAlignment; }

 private:
  std::byte* TakeBytes(std::size_t bytes);

  std::byte* start_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace oscar::base
