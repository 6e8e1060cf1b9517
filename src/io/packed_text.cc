#include "src/io/packed_text.h"

#include <zlib.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "src/base/status_macros.h"

namespace oscar::io {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::array<int8_t, 256> MakeDigits() {
  std::array<int8_t, 256> digits;
  digits.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return digits;
}

// A stack machine with one place: the opcodes of a pickle that holds a text and nothing else.
class TextPickle {
 public:
  explicit TextPickle(std::string_view bytes) : bytes_(bytes) {}

  Result<std::string> Read() {
    while (at_ < bytes_.size()) {
      opcode_at_ = at_;
      const auto opcode = static_cast<uint8_t>(bytes_[at_++]);
      if (opcode == '.') {
        if (!text_) return Corrupt("ends without a text");
        if (at_ != bytes_.size()) return Corrupt("has bytes behind its end");
        return *std::move(text_);
      }
      OSCAR_TRY(Step(opcode));
    }
    return Corrupt("is truncated");
  }

 private:
  Status Step(uint8_t opcode) {
    switch (opcode) {
      case 0x80: return Skip(1);                 // PROTO
      case 0x95: return Skip(8);                 // FRAME
      case 'X': return TakeText(4);              // BINUNICODE
      case 0x8C: return TakeText(1);             // SHORT_BINUNICODE
      case 0x8D: return TakeText(8);             // BINUNICODE8
      case 'q': return Skip(1);                  // BINPUT: nothing recalls it
      case 'r': return Skip(4);                  // LONG_BINPUT
      case 0x94: return {};                      // MEMOIZE
      default: return {StatusCode::kUnsupported, "pickle: opcode " + std::to_string(opcode) + " at byte " + std::to_string(opcode_at_) +
                                                     " is not one of a text"};
    }
  }
  Status Corrupt(const std::string& why) const {
    return {StatusCode::kCorruptData, "pickle: " + why + " (byte " + std::to_string(at_) + ")"};
  }
  Status Skip(size_t count) {
    if (bytes_.size() - at_ < count) return Corrupt("is truncated");
    at_ += count;
    return {};
  }
  Status TakeText(size_t length_bytes) {
    if (text_) return Corrupt("holds more than one text");
    if (bytes_.size() - at_ < length_bytes) return Corrupt("is truncated");
    uint64_t length = 0;
    for (size_t i = 0; i < length_bytes; ++i) length |= uint64_t{static_cast<uint8_t>(bytes_[at_ + i])} << (8 * i);
    at_ += length_bytes;
    if (bytes_.size() - at_ < length) return Corrupt("is truncated");
    text_.emplace(bytes_.substr(at_, static_cast<size_t>(length)));
    at_ += static_cast<size_t>(length);
    return {};
  }

  const std::string_view bytes_;
  size_t at_ = 0, opcode_at_ = 0;
  std::optional<std::string> text_;
};

}  // namespace

Result<std::string> DecodeBase64(std::string_view text) {
  static const std::array<int8_t, 256> kDigits = MakeDigits();
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int digits = 0, padding = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n' || c == '\r' || c == ' ' || c == '\t') continue;
    const int digit = kDigits[static_cast<uint8_t>(c)];
    if (c == '=' ? ++padding > 2 : digit < 0 || padding > 0) {
      return {StatusCode::kCorruptData, "base64: byte " + std::to_string(i) + " does not belong there"};
    }
    if (c == '=') continue;
    group = group << 6 | static_cast<uint32_t>(digit);
    if (++digits < 4) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(group >> shift & 0xFF);
    group = 0;
    digits = 0;
  }
  if (digits == 1 || (padding > 0 && digits + padding != 4)) return {StatusCode::kCorruptData, "base64: the text is truncated"};
  if (digits == 3) bytes += static_cast<char>(group >> 10 & 0xFF);
  if (digits == 2) bytes += static_cast<char>(group >> 4 & 0xFF);
  if (digits == 3) bytes += static_cast<char>(group >> 2 & 0xFF);
  return bytes;
}

Result<std::string> Inflate(std::string_view stream, size_t max_bytes) {
  if (stream.size() > UINT32_MAX) return {StatusCode::kResourceExhausted, "zlib: a stream of more than 4 GiB"};
  z_stream state{};
  if (inflateInit(&state) != Z_OK) return {StatusCode::kInternal, "zlib: no memory for a stream"};
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stream.data()));
  state.avail_in = static_cast<uInt>(stream.size());
  std::string content;
  std::array<char, 1 << 16> part;
  int code = Z_OK;
  while (code == Z_OK && content.size() <= max_bytes) {
    state.next_out = reinterpret_cast<Bytef*>(part.data());
    state.avail_out = static_cast<uInt>(part.size());
    code = inflate(&state, Z_NO_FLUSH);
    content.append(part.data(), part.size() - state.avail_out);
  }
  const bool whole = code == Z_STREAM_END && state.avail_in == 0;
  inflateEnd(&state);
  if (content.size() > max_bytes) return {StatusCode::kResourceExhausted, "zlib: more than " + std::to_string(max_bytes) + " bytes of content"};
  if (!whole) return {StatusCode::kCorruptData, "zlib: the stream is damaged, truncated or followed by other bytes"};
  return content;
}

Result<std::string> ReadPickledText(std::string_view pickle) { return TextPickle(pickle).Read(); }

Result<std::string> UnpackText(std::string_view packed, size_t max_bytes) {
  OSCAR_ASSIGN_OR_RETURN(const std::string stream, DecodeBase64(packed));
  OSCAR_ASSIGN_OR_RETURN(const std::string pickle, Inflate(stream, max_bytes));
  return ReadPickledText(pickle);
}

}  // namespace oscar::io
