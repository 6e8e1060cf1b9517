#include "src/engine/text/string_index.h"

#include <bit>
#include <cstring>
#include <random>

namespace oscar::engine {
namespace {

constexpr uint64_t kPrime =
    (uint64_t{1} << 61) - 1;  // Mersenne: the remainder is a shift and an addition

uint64_t MultiplyModulo(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  const uint64_t sum =
      static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

}  // namespace

StringIndex::StringIndex(size_t num_texts)
    : slots_(std::bit_ceil(2 * num_texts + 2), -1), mask_(slots_.size() - 1) {
  std::random_device device;
  key_ = ((uint64_t{device()} << 32 | device()) % (kPrime - 2)) + 1;
}

// The text as a polynomial over the field of kPrime, seven bytes a coefficient, at the secret point
// key_: two different texts of n coefficients collide for at most n keys.
size_t StringIndex::Hash(std::string_view text) const {
  uint64_t hash = text.size() + 1;
  while (!text.empty()) {
    uint64_t coefficient = 0;
    const size_t size = text.size() < 7 ? text.size() : 7;
    std::memcpy(&coefficient, text.data(), size);
    hash = MultiplyModulo(hash, key_) + coefficient;  // below 2^62: still a valid factor
    text.remove_prefix(size);
  }
  hash = MultiplyModulo(hash, key_);
  return static_cast<size_t>(hash ^ hash >> 32);
}

}  // namespace oscar::engine
