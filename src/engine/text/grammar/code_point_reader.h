// CodePointReader: a text read one code point at a time, and what the syntaxes of expressions share: hexadecimal escapes, counts,
// character classes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/grammar/expression.h"

namespace oscar::engine::grammar {

class CodePointReader {
 public:
  // Precondition: valid UTF-8.
  explicit CodePointReader(std::string_view text) : text_(text) {}

  bool done() const { return at_ >= text_.size(); }
  size_t position() const { return at_; }  // bytes
  bool LooksAt(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool Take(std::string_view what);
  // Preconditions: not done().
  char Peek() const { return text_[at_]; }
  char32_t Read();
  // kInvalidArgument unless that many hexadecimal digits of a scalar value follow.
  Result<char32_t> ReadHex(int digits);
  // Decimal digits, at most 100,000; nothing when there are none.
  std::optional<int> ReadCount();
  // Behind a '{': "m}", "m,}" or "m,n}".
  Result<std::pair<int, int>> ReadRepeat();
  // kInvalidArgument with the place.
  Status Error(const std::string& what) const;

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// \d \w \s and their capitals, as in ECMA-262 without flags; empty for another letter.
std::vector<CodePointRange> ClassEscape(char32_t letter);
// \n \r \t \f \v \0; nothing for another letter.
std::optional<char32_t> ControlEscape(char32_t letter);

}  // namespace oscar::engine::grammar
