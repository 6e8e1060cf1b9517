// Ids of requests and answers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

namespace oscar::engine {

// Sixteen hexadecimal digits.
inline std::string RandomId() {
  static thread_local std::mt19937_64 rng{std::random_device{}()};
  char text[25];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(rng()));
  return text;
}

}  // namespace oscar::engine
