#include "src/engine/serve/msgpack_text.h"

#include <bit>

namespace oscar::engine {

void MsgpackText::Append(uint8_t head, uint64_t value, int bytes) {
  text_.push_back(static_cast<char>(head));
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text_.push_back(static_cast<char>(value >> shift & 0xff));
}

void MsgpackText::Unsigned(uint64_t value) {
  if (value < 0x80) return text_.push_back(static_cast<char>(value));
  if (value <= 0xff) return Append(0xcc, value, 1);
  if (value <= 0xffff) return Append(0xcd, value, 2);
  if (value <= 0xffffffff) return Append(0xce, value, 4);
  Append(0xcf, value, 8);
}

void MsgpackText::Double(double value) { Append(0xcb, std::bit_cast<uint64_t>(value), 8); }

void MsgpackText::Text(std::string_view value) {
  if (value.size() < 32) {
    text_.push_back(static_cast<char>(0xa0 | value.size()));
  } else if (value.size() <= 0xff) {
    Append(0xd9, value.size(), 1);
  } else if (value.size() <= 0xffff) {
    Append(0xda, value.size(), 2);
  } else {
    Append(0xdb, value.size(), 4);
  }
  text_ += value;
}

void MsgpackText::Array(uint64_t size) {
  if (size < 16) return text_.push_back(static_cast<char>(0x90 | size));
  if (size <= 0xffff) return Append(0xdc, size, 2);
  Append(0xdd, size, 4);
}

}  // namespace oscar::engine
