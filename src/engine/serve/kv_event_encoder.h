// KvEventEncoder: KV events in vLLM's layout (serving.md 15), which routers read to send requests where their prefixes are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/digest.h"

namespace oscar::engine {

class KvEventEncoder {
 public:
  // key: of all that two servers must have in common for equal hashes to mean equal pages: model, method, profile, windows.
  // spaces_have_tenants: a space is TENANT '\n' SALT, otherwise it is the salt.
  KvEventEncoder(std::string key, bool spaces_have_tenants) : key_(std::move(key)), spaces_have_tenants_(spaces_have_tenants) {}

  // One event each, as MessagePack. Arguments as PrefixObserver's.
  std::string Stored(std::string_view space, std::span<const int32_t> tokens, int first_page) const;
  std::string Removed(std::string_view space, std::span<const int32_t> tokens, int first_page) const;
  static std::string Cleared();
  // [seconds since 1970, the events, data parallel rank 0].
  static std::string Batch(double seconds, std::span<const std::string> events);

  // Hashes of all pages of `tokens`, each of all tokens up to its end: the first 8 bytes of a chain of SHA-256, without the top bit, so that
  // readers with and without signs agree. No seed of this process.
  std::vector<uint64_t> Hashes(std::string_view space, std::span<const int32_t> tokens) const;

 private:
  std::string_view SaltOf(std::string_view space) const;

  const std::string key_;
  const bool spaces_have_tenants_;
};

}  // namespace oscar::engine
