// Profiles of rotatekv with random channel orders, for tests without calibration.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "src/kv/codec/rotatekv/rotatekv.h"

namespace oscar::testing {

// One layer after the other, one order for each four heads, all drawn from the seed.
inline Result<CodecProfile> RandomOrderProfile(const KvShape& shape, const RotaryEmbedding& rotary, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<uint16_t>> orders(static_cast<size_t>(shape.num_layers * shape.num_kv_heads) / 4);
  for (std::vector<uint16_t>& order : orders) {
    order.resize(4 * static_cast<size_t>(shape.head_dim));
    std::iota(order.begin(), order.end(), uint16_t{0});
    std::shuffle(order.begin(), order.end(), rng);
  }
  return rotatekv::MakeProfileWithOrders("rotatekv", shape, rotary, std::move(orders), Provenance{});
}

}  // namespace oscar::testing
