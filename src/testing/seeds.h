// Random inputs of tests: seeded, printed on failure, replayed with OSCAR_TEST_SEED.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace oscar::testing {

// The seed of a randomised test: `fallback`, or the environment variable OSCAR_TEST_SEED.
inline uint64_t TestSeed(uint64_t fallback) {
  const char* text = std::getenv("OSCAR_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : fallback;
}

inline std::vector<float> NormalVector(std::mt19937_64& rng, size_t size, float deviation = 1.0f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(size);
  for (float& value : values) value = normal(rng);
  return values;
}

}  // namespace oscar::testing
