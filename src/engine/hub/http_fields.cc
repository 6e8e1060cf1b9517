#include "src/engine/hub/http_fields.h"

#include <charconv>
#include <cstddef>
#include <limits>

namespace oscar::engine {
namespace {

constexpr size_t kMaxEtagChars = 256;

// Takes the digits at the front of `text`; nullopt when there are none or the number reaches 2^63.
std::optional<uint64_t> TakeNumber(std::string_view& text) {
  uint64_t number = 0;
  const char* const begin = text.data();
  const auto [end, error] = std::from_chars(begin, begin + text.size(), number);
  if (error != std::errc() || number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - begin));
  return number;
}

bool Take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::optional<ContentRange> ParseContentRange(std::string_view value) {
  if (!Take(value, "bytes ")) return std::nullopt;
  ContentRange range;
  const auto first = TakeNumber(value);
  if (!first || !Take(value, "-")) return std::nullopt;
  const auto last = TakeNumber(value);
  if (!last || !Take(value, "/") || *first > *last) return std::nullopt;
  range.first = *first;
  range.last = *last;
  if (value == "*") return range;
  range.total = ParseByteCount(value);
  if (!range.total || *range.total <= range.last) return std::nullopt;
  return range;
}

std::optional<uint64_t> ParseByteCount(std::string_view value) {
  const auto number = TakeNumber(value);
  return value.empty() ? number : std::nullopt;
}

std::string StrongEtag(std::string_view value) {
  if (value.size() < 2 || value.size() > kMaxEtagChars || value.front() != '"' || value.back() != '"') return {};
  for (const char c : value.substr(1, value.size() - 2)) {
    if (c < 0x21 || c > 0x7e || c == '"') return {};
  }
  return std::string(value);
}

std::string Sha256FromHex(std::string_view text) {
  if (text.size() != 64) return {};
  std::string hex;
  for (const char c : text) {
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')) {
      hex += c;
    } else if (c >= 'A' && c <= 'F') {
      hex += static_cast<char>(c - 'A' + 'a');
    } else {
      return {};
    }
  }
  return hex;
}

std::string Sha256FromEtag(std::string_view value) {
  Take(value, "W/");
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  return Sha256FromHex(value);
}

}  // namespace oscar::engine
