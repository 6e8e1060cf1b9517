#include "src/base/arena.h"

#include <cstdint>

namespace oscar::base {
namespace {

constexpr std::size_t RoundUp(std::size_t bytes) { return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment; }

}  // namespace

Arena::Arena(std::span<std::byte> buffer) {
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  start_ = buffer.data() + (RoundUp(address) - address);
}

std::byte* Arena::TakeBytes(std::size_t bytes) {
  std::byte* taken = start_ == nullptr ? nullptr : start_ + used_;
  used_ += RoundUp(bytes);
  return taken;
}

}  // namespace oscar::base
