// Grammars over a small vocabulary, for tests: all bytes, and tokens of more of them that cross the borders of rules.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/engine/text/grammar/matcher.h"

namespace oscar::engine::grammar {

inline constexpr int32_t kEnd = 256;

inline std::shared_ptr<const TokenTrie> TestTrie() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.push_back(std::string(1, static_cast<char>(byte)));
  texts.push_back("");  // kEnd
  for (const char* text : {"true", "false", "null", "{\"", "\":", "\": ", "\",", "\", \"", "\"}", "}}", "}]", "],", "[{", "12", "123", "-1", ".5", "e1", " {", "ab", "abc", "name",
                           "\\\"", "\\u00", "</", "<tool", "_call>", "\n{\"", "é", "日本", "\xE6\x97", "\xA5\xE6", "😀", "  ", "\n  ", "\"a\": 1", "ba", "bb",
                           "abcabc", "éa", "日本ab", "a日", "a\"", "ab\", \"", "aaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaa\"", "b\xC3", "\xA9x", "Ab", "Z9_"}) {
    texts.push_back(text);
  }
  return std::make_shared<const TokenTrie>(std::move(texts), std::vector<int32_t>{kEnd});
}

inline bool Allows(const TokenMask& mask, int32_t token) { return HasToken(mask, token); }

// A text of the grammar drawn token by token; empty with a failure when there was none within `most` tokens.
inline std::string DrawText(const std::shared_ptr<const Grammar>& grammar, std::mt19937_64& rng, int most) {
  GrammarMatcher matcher(grammar);
  std::string text;
  for (int i = 0;; ++i) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) {
      ADD_FAILURE() << mask.status().message() << " after " << text;
      return "";
    }
    if (Allows(**mask, kEnd) && (i > most || rng() % 4 == 0)) return text;
    if (i > 50 * most) {
      ADD_FAILURE() << "no end: " << text.substr(0, 200);
      return "";
    }
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < grammar->trie().num_tokens(); ++token) {
      if (token != kEnd && Allows(**mask, token)) allowed.push_back(token);
    }
    if (allowed.empty()) return text;
    // Past the wanted length, what closes is preferred, so that recursion ends.
    std::vector<int32_t> closing;
    for (const int32_t token : allowed) {
      if (grammar->trie().bytes(token).find_first_not_of("\"}]0x") == std::string_view::npos) closing.push_back(token);
    }
    const std::vector<int32_t>& from = i > most && !closing.empty() ? closing : allowed;
    const int32_t token = from[rng() % from.size()];
    matcher.Accept(token);
    text += grammar->trie().bytes(token);
  }
}

}  // namespace oscar::engine::grammar
