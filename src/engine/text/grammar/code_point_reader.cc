#include "src/engine/text/grammar/code_point_reader.h"

#include "src/engine/text/utf8.h"

namespace oscar::engine::grammar {

bool CodePointReader::Take(std::string_view what) {
  if (!LooksAt(what)) return false;
  at_ += what.size();
  return true;
}

char32_t CodePointReader::Read() {
  const Utf8Step step = NextUtf8(text_.substr(at_));
  at_ += step.size;
  return step.kind == Utf8Kind::kCharacter ? step.code_point : U'\uFFFD';
}

Status CodePointReader::Error(const std::string& what) const { return {StatusCode::kInvalidArgument, what + " at byte " + std::to_string(at_)}; }

Result<char32_t> CodePointReader::ReadHex(int digits) {
  char32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = done() ? '\0' : Peek();
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return Error("an escape needs " + std::to_string(digits) + " hexadecimal digits");
    value = value * 16 + static_cast<char32_t>(digit);
    ++at_;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return Error("an escape of no character");
  return value;
}

std::optional<int> CodePointReader::ReadCount() {
  if (done() || Peek() < '0' || Peek() > '9') return std::nullopt;
  int value = 0;
  for (; !done() && Peek() >= '0' && Peek() <= '9'; ++at_) value = std::min(100'000, value * 10 + (Peek() - '0'));
  return value;
}

Result<std::pair<int, int>> CodePointReader::ReadRepeat() {
  const std::optional<int> least = ReadCount();
  if (!least) return Error("a repetition needs a number");
  if (Take("}")) return std::pair(*least, *least);
  if (!Take(",")) return Error("a repetition is {m}, {m,} or {m,n}, which is not what stands");
  const std::optional<int> most = ReadCount();
  if (!Take("}")) return Error("a repetition without its end");
  if (most && *most < *least) return Error("a repetition from more to less");
  return std::pair(*least, most.value_or(Expression::kNoLimit));
}

std::vector<CodePointRange> ClassEscape(char32_t letter) {
  const std::vector<CodePointRange> digits = {{'0', '9'}}, words = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                    spaces = {{9, 13}, {32, 32}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                              {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  switch (letter) {
    case 'd': return digits;
    case 'D': return Complement(digits);
    case 'w': return words;
    case 'W': return Complement(words);
    case 's': return spaces;
    case 'S': return Complement(spaces);
    default: return {};
  }
}

std::optional<char32_t> ControlEscape(char32_t letter) {
  switch (letter) {
    case 'n': return U'\n';
    case 'r': return U'\r';
    case 't': return U'\t';
    case 'f': return U'\f';
    case 'v': return U'\v';
    case '0': return U'\0';
    default: return std::nullopt;
  }
}

}  // namespace oscar::engine::grammar
