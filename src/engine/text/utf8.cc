#include "src/engine/text/utf8.h"

namespace oscar::engine {
namespace {

struct LeadByte {
  int size;  // bytes of the character; 0 for a byte that leads none
  unsigned char low,
      high;  // range of the second byte, which excludes overlong forms, surrogates and > U+10FFFF
};

LeadByte Lead(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  const LeadByte lead = Lead(first);
  if (lead.size == 0) return {Utf8Kind::kInvalid, 0, 1};
  if (lead.size == 1) return {Utf8Kind::kCharacter, first, 1};
  uint32_t code_point = first & (0x7Fu >> lead.size);
  for (int i = 1; i < lead.size; ++i) {
    const auto taken = static_cast<size_t>(i);
    if (taken == bytes.size()) return {Utf8Kind::kIncomplete, 0, taken};
    const auto byte = static_cast<unsigned char>(bytes[taken]);
    const bool fits = i == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
    if (!fits) return {Utf8Kind::kInvalid, 0, taken};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {Utf8Kind::kCharacter, code_point, static_cast<size_t>(lead.size)};
}

std::string_view NextUtf8Run(std::string_view text, bool* valid) {
  size_t size = 0;
  while (size < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(size));
    const bool is_character = step.kind == Utf8Kind::kCharacter;
    if (size == 0) *valid = is_character;
    if (is_character != *valid) break;
    size += step.size;
  }
  return text.substr(0, size);
}

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto push = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

}  // namespace oscar::engine
