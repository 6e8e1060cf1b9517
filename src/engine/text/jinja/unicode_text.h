// Python's text operations on UTF-8: Jinja counts, cuts and strips code points. All inputs are valid UTF-8
// (IsValidUtf8). Case mapping is one code point to one, but for "ß" (capitals "SS"); Python also splits ligatures and a
// few more.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar::engine::jinja {

bool IsValidUtf8(std::string_view text);
std::u32string DecodeUtf8(std::string_view text);
std::string EncodeUtf8(std::u32string_view text);
void AppendUtf8(char32_t code_point, std::string* text);
size_t CountCodePoints(std::string_view text);

bool IsSpace(char32_t code_point);  // as str.isspace and the regular expression \s
bool IsAlphabetic(char32_t code_point);
std::string_view StripSpace(std::string_view text, bool left, bool right);
// Strips any of the code points of `characters`.
std::string_view StripCharacters(std::string_view text, std::string_view characters, bool left, bool right);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string Capitalize(std::string_view text);  // first code point to title case, the rest to lower case
std::string ToTitle(std::string_view text);     // str.title: Capitalize of each run of letters
// The lines of str.splitlines, without their ends.
std::vector<std::string> SplitLines(std::string_view text);

}  // namespace oscar::engine::jinja
