#include "src/engine/text/jinja/unicode_text.h"

#include <utf8proc.h>

namespace oscar::engine::jinja {
namespace {

// Reads the code point at `*position` and moves past it. -1 on invalid UTF-8.
int32_t NextCodePoint(std::string_view text, size_t* position) {
  utf8proc_int32_t code_point = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + *position;
  const auto size = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - *position), &code_point);
  if (size <= 0) return -1;
  *position += static_cast<size_t>(size);
  return code_point;
}

template <class Keep>
std::string_view Strip(std::string_view text, bool left, bool right, Keep stripped) {
  while (left && !text.empty()) {
    size_t size = 0;
    if (!stripped(static_cast<char32_t>(NextCodePoint(text, &size)))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t position = start;
    if (!stripped(static_cast<char32_t>(NextCodePoint(text, &position)))) break;
    text = text.substr(0, start);
  }
  return text;
}

constexpr char32_t kSharpS = 0xDF;

char32_t Upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t Lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t Title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }

void AppendCased(char32_t c, bool lower, std::string* text) {
  if (!lower && c == kSharpS) {
    *text += "Ss";
  } else {
    AppendUtf8(lower ? Lower(c) : Title(c), text);
  }
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    if (NextCodePoint(text, &position) < 0) return false;
  }
  return true;
}

std::u32string DecodeUtf8(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const int32_t code_point = NextCodePoint(text, &position);
    if (code_point < 0) break;
    result.push_back(static_cast<char32_t>(code_point));
  }
  return result;
}

void AppendUtf8(char32_t code_point, std::string* text) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  text->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

std::string EncodeUtf8(std::u32string_view text) {
  std::string result;
  for (char32_t c : text) AppendUtf8(c, &result);
  return result;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsAlphabetic(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return true;
    default: return false;
  }
}

std::string_view StripSpace(std::string_view text, bool left, bool right) { return Strip(text, left, right, IsSpace); }

std::string_view StripCharacters(std::string_view text, std::string_view characters, bool left, bool right) {
  const std::u32string set = DecodeUtf8(characters);
  return Strip(text, left, right, [&](char32_t c) { return set.find(c) != std::u32string::npos; });
}

std::string ToUpper(std::string_view text) {
  const std::u32string points = DecodeUtf8(text);
  std::string result;
  for (char32_t c : points) c == kSharpS ? void(result += "SS") : AppendUtf8(Upper(c), &result);
  return result;
}

std::string ToLower(std::string_view text) {
  std::u32string points = DecodeUtf8(text);
  for (char32_t& c : points) c = Lower(c);
  return EncodeUtf8(points);
}

std::string Capitalize(std::string_view text) {
  const std::u32string points = DecodeUtf8(text);
  std::string result;
  for (size_t i = 0; i < points.size(); ++i) AppendCased(points[i], /*lower=*/i > 0, &result);
  return result;
}

std::string ToTitle(std::string_view text) {
  std::string result;
  bool in_word = false;
  for (char32_t c : DecodeUtf8(text)) {
    AppendCased(c, in_word, &result);
    in_word = Upper(c) != c || Lower(c) != c;
  }
  return result;
}

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t end = position;
    const int32_t c = NextCodePoint(text, &position);
    if (c < 0) break;
    if (!((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029)) continue;
    if (c == '\r' && position < text.size() && text[position] == '\n') ++position;
    lines.emplace_back(text.substr(start, end - start));
    start = position;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

}  // namespace oscar::engine::jinja
