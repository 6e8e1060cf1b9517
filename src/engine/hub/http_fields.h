// The few HTTP header values that `oscar pull` acts on, parsed strictly: a value that breaks its grammar counts as absent,
// so a server's nonsense never becomes an offset, a size or a hash. Grammar: RFC 9110, sections 8.8.3 and 14.4.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oscar::engine {

// Bytes [first, last] of a resource of `total` bytes ("bytes 10-19/100"); total is empty for "/*".
struct ContentRange {
  uint64_t first = 0;
  uint64_t last = 0;
  std::optional<uint64_t> total;
  bool operator==(const ContentRange&) const = default;
};

// nullopt unless the value is well-formed with first <= last < total.
std::optional<ContentRange> ParseContentRange(std::string_view value);

// A count of bytes: digits only, below 2^63; nullopt otherwise.
std::optional<uint64_t> ParseByteCount(std::string_view value);

// The entity tag with its quotes, as If-Range takes it; empty when it is weak, malformed or longer than 256 characters.
std::string StrongEtag(std::string_view value);

// The 64 lower-case digits when `text` is a SHA-256 in hexadecimal; empty otherwise.
std::string Sha256FromHex(std::string_view text);

// The same for an entity tag whose text is a SHA-256 (weak or strong, with or without quotes).
std::string Sha256FromEtag(std::string_view value);

}  // namespace oscar::engine
