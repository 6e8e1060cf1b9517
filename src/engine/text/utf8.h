// UTF-8, one character at a time, for text that may be anything: the Unicode Standard 15, table
// 3-7, with invalid bytes cut into the "maximal subparts" of its section 3.9, each of which stands
// for one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace oscar::engine {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind {
  kCharacter,   // a whole character
  kInvalid,     // bytes that can never become one, whatever follows
  kIncomplete,  // the text ends inside a character
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kCharacter;
  uint32_t code_point = 0;  // of kCharacter only
  size_t size = 0;          // bytes taken, at least 1
};

// The first step of `bytes`. Precondition: not empty.
Utf8Step NextUtf8(std::string_view bytes);

// The longest prefix of `text` that is either valid UTF-8 throughout (*valid = true) or invalid
// throughout. An incomplete end counts as invalid. Precondition: not empty.
std::string_view NextUtf8Run(std::string_view text, bool* valid);

// Precondition: a Unicode scalar value.
void AppendUtf8(uint32_t code_point, std::string* text);

}  // namespace oscar::engine
