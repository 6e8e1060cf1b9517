#include "src/engine/text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "src/engine/text/jinja/budget.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Line ends become "\n"; one at the very end is dropped.
std::string NormalizeSource(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    result += source[i] == '\r' ? '\n' : source[i];
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(NormalizeSource(source)), source_(text_) {}

  std::vector<Token> Run() {
    while (position_ < source_.size()) {
      const size_t tag = FindTag(position_);
      if (tag == source_.npos) {
        Emit(TokenType::kData, source_.substr(position_));
        break;
      }
      const char kind = source_[tag + 1];
      EmitData(tag, kind != '{');
      size_t raw_end = 0;
      bool raw_trim = false;
      if (kind == '#') {
        SkipComment();
      } else if (kind == '%' && MatchWordTag(tag, "raw", /*closing=*/false, &raw_end, &raw_trim)) {
        MoveTo(raw_end);
        if (raw_trim) SkipSpace();
        ReadRaw();
      } else {
        Emit(kind == '%' ? TokenType::kTagBegin : TokenType::kVariableBegin, {});
        ReadExpression(kind == '%');
      }
      line_starting_ = source_[position_ - 1] == '\n';
    }
    Emit(TokenType::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void FailHere(std::string message, StatusCode code = StatusCode::kCorruptData) const {
    Fail(std::move(message), code, line_);
  }

  void Emit(TokenType type, std::string_view text) {
    if (type != TokenType::kData || !text.empty()) tokens_.push_back({type, std::string(text), line_});
  }

  void MoveTo(size_t position) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<long>(position_),
                                         source_.begin() + static_cast<long>(position), '\n'));
    position_ = position;
  }

  void SkipSpace() { MoveTo(source_.size() - StripSpace(source_.substr(position_), true, false).size()); }

  size_t FindTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != source_.npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    }
    return source_.npos;
  }

  // The text before the tag at `tag`, stripped as the sign of the tag says; then moves behind the sign.
  void EmitData(size_t tag, bool lstrip) {
    std::string_view data = source_.substr(position_, tag - position_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      data = StripSpace(data, false, true);
    } else if (sign != '+' && lstrip) {
      const size_t line_start = data.rfind('\n') + 1;  // 0 when there is no newline
      if ((line_start > 0 || line_starting_) && StripSpace(data.substr(line_start), true, false).empty()) {
        data = data.substr(0, line_start);
      }
    }
    Emit(TokenType::kData, data);
    MoveTo(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
  }

  void SkipComment() {
    const size_t end = source_.find("#}", position_);
    if (end == source_.npos) FailHere("a comment is not closed");
    const char sign = end > position_ ? source_[end - 1] : '\0';
    MoveTo(end + 2);
    EndTag(sign);
  }

  // Behind the end of a tag or comment: "-" strips all space, none strips one newline, "+" strips nothing.
  void EndTag(char sign) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && position_ < source_.size() && source_[position_] == '\n') {
      MoveTo(position_ + 1);
    }
  }

  // Whether the tag at `tag` is {% word %}; then *end is the place behind it and *trim tells a "-" at its end.
  bool MatchWordTag(size_t tag, std::string_view word, bool closing, size_t* end, bool* trim) const {
    size_t at = tag + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    while (at < source_.size() && IsAsciiSpace(source_[at])) ++at;
    if (source_.substr(at, word.size()) != word) return false;
    at += word.size();
    while (at < source_.size() && IsAsciiSpace(source_[at])) ++at;
    const char sign = at < source_.size() ? source_[at] : '\0';
    *trim = sign == '-';
    if (*trim || (closing && sign == '+')) ++at;
    *end = at + 2;
    return source_.substr(at, 2) == "%}";
  }

  void ReadRaw() {
    for (size_t tag = source_.find("{%", position_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      size_t end = 0;
      bool trim = false;
      if (!MatchWordTag(tag, "endraw", /*closing=*/true, &end, &trim)) continue;
      line_starting_ = source_[position_ - 1] == '\n';
      EmitData(tag, true);
      MoveTo(end);
      EndTag(source_[end - 3]);
      return;
    }
    FailHere("a raw section is not closed");
  }

  // Tokens up to the end of the tag or variable, and the end itself.
  void ReadExpression(bool is_tag) {
    const std::string_view closing = is_tag ? "%}" : "}}";
    std::string brackets;
    for (;;) {
      while (position_ < source_.size() && IsAsciiSpace(source_[position_])) MoveTo(position_ + 1);
      if (position_ >= source_.size()) FailHere(is_tag ? "a tag is not closed" : "an expression is not closed");
      const char c = source_[position_];
      const bool has_sign = c == '-' || (is_tag && c == '+');
      if (brackets.empty() && source_.substr(position_ + (has_sign ? 1 : 0), 2) == closing) {
        Emit(is_tag ? TokenType::kTagEnd : TokenType::kVariableEnd, {});
        MoveTo(position_ + (has_sign ? 3 : 2));
        if (is_tag || c == '-') EndTag(has_sign ? c : '\0');
        return;
      }
      if (IsNameStart(c)) {
        size_t end = position_ + 1;
        while (end < source_.size() && (IsNameStart(source_[end]) || IsDigit(source_[end]))) ++end;
        Emit(TokenType::kName, source_.substr(position_, end - position_));
        MoveTo(end);
      } else if (IsDigit(c)) {
        ReadNumber();
      } else if (c == '\'' || c == '"') {
        ReadString(c);
      } else {
        ReadOperator(&brackets);
      }
    }
  }

  // [0-9] groups joined by single underscores, appended to *digits.
  size_t ReadDigits(size_t at, std::string* digits) const {
    while (at < source_.size() &&
           (IsDigit(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && IsDigit(source_[at + 1])))) {
      if (source_[at] != '_') *digits += source_[at];
      ++at;
    }
    return at;
  }

  void ReadNumber() {
    const char base = source_[position_] == '0' && position_ + 1 < source_.size() ? source_[position_ + 1] : '\0';
    if (std::string_view("xXoObB").find(base) != std::string_view::npos && base != '\0') {
      FailHere("hexadecimal, octal and binary numbers", StatusCode::kUnsupported);
    }
    const bool after_dot =
        !tokens_.empty() && tokens_.back().type == TokenType::kOperator && tokens_.back().text == ".";
    std::string digits;
    size_t at = ReadDigits(position_, &digits);
    bool is_float = false;
    if (!after_dot && at + 1 < source_.size() && source_[at] == '.' && IsDigit(source_[at + 1])) {
      digits += '.';
      at = ReadDigits(at + 1, &digits);
      is_float = true;
    }
    size_t exponent = at + 1;
    if (!after_dot && at < source_.size() && (source_[at] == 'e' || source_[at] == 'E')) {
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        digits.append(source_.substr(at, exponent - at));
        at = ReadDigits(exponent, &digits);
        is_float = true;
      }
    }
    if (!is_float && digits.size() > 1 && digits.find_first_not_of('0') != digits.npos && digits[0] == '0') {
      FailHere("an integer begins with 0");
    }
    Emit(is_float ? TokenType::kFloat : TokenType::kInteger, digits);
    MoveTo(at);
  }

  void ReadString(char quote) {
    std::string text;
    size_t at = position_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        text += source_[at++];
      } else {
        if (at + 1 >= source_.size()) break;
        at = ReadEscape(at + 1, &text);
      }
    }
    if (at >= source_.size()) FailHere("a string is not closed");
    Emit(TokenType::kString, text);
    MoveTo(at + 1);
  }

  // Python's escapes; `at` is the character behind the backslash. Unknown ones stay as written.
  size_t ReadEscape(size_t at, std::string* text) const {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at];
    if (c == '\n') return at + 1;
    if (const size_t place = kLetters.find(c); place != kLetters.npos) {
      *text += kMeanings[place];
      return at + 1;
    }
    if (c == 'N') FailHere("\\N escapes", StatusCode::kUnsupported);
    const bool octal = c >= '0' && c <= '7';
    if (!octal && c != 'x' && c != 'u' && c != 'U') {
      *text += '\\';
      return at;
    }
    const size_t start = octal ? at : at + 1, most = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : 8;
    char32_t code_point = 0;
    size_t end = start;
    for (; end < start + most && end < source_.size(); ++end) {
      const char digit = source_[end];
      if (octal ? digit < '0' || digit > '7' : !std::isxdigit(static_cast<unsigned char>(digit))) break;
      const char letter = static_cast<char>(digit | 0x20);
      code_point =
          code_point * (octal ? 8 : 16) + static_cast<char32_t>(IsDigit(digit) ? digit - '0' : letter - 'a' + 10);
    }
    if (!octal && end != start + most) FailHere("a \\x, \\u or \\U escape has too few digits");
    if (code_point > 0x10FFFF) FailHere("an escape names no Unicode character");
    if (code_point >= 0xD800 && code_point < 0xE000) FailHere("a surrogate in a string", StatusCode::kUnsupported);
    AppendUtf8(code_point, text);
    return end;
  }

  void ReadOperator(std::string* brackets) {
    static constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = source_[position_];
    const bool is_pair =
        std::find(std::begin(kPairs), std::end(kPairs), source_.substr(position_, 2)) != std::end(kPairs);
    if (!is_pair && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      const bool ascii = static_cast<unsigned char>(c) < 0x80;
      FailHere(ascii ? "unexpected character '" + std::string(1, c) + "'" : "a non-ASCII character outside a string",
               ascii ? StatusCode::kCorruptData : StatusCode::kUnsupported);
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (brackets->size() > kMaxSourceDepth) {
        FailHere("the template is nested too deeply", StatusCode::kResourceExhausted);
      }
    }
    if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty() || brackets->back() != c) FailHere("unexpected '" + std::string(1, c) + "'");
      brackets->pop_back();
    }
    Emit(TokenType::kOperator, source_.substr(position_, is_pair ? 2 : 1));
    MoveTo(position_ + (is_pair ? 2 : 1));
  }

  const std::string text_;
  const std::string_view source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace oscar::engine::jinja
