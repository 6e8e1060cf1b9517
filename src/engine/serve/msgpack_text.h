// MsgpackText: values appended in the MessagePack format, as far as KV events need it, each in its shortest form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar::engine {

class MsgpackText {
 public:
  void Nil() { text_.push_back('\xc0'); }
  void Unsigned(uint64_t value);
  void Double(double value);
  void Text(std::string_view value);  // UTF-8
  // The head of an array: `size` values follow.
  void Array(uint64_t size);
  // A value that was made before.
  void Made(std::string_view value) { text_ += value; }
  const std::string& text() const { return text_; }

 private:
  // `head`, then the low `bytes` of the value, most significant first.
  void Append(uint8_t head, uint64_t value, int bytes);

  std::string text_;
};

}  // namespace oscar::engine
