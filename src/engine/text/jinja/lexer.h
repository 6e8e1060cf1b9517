// Template source to tokens, with the whitespace rules of trim_blocks and lstrip_blocks, which Hugging Face turns on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/engine/text/jinja/budget.h"

namespace oscar::engine::jinja {

enum class TokenType {
  kData,
  kVariableBegin,
  kVariableEnd,
  kTagBegin,
  kTagEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // data, name, operator; a string without quotes and escapes; digits without underscores
  int line = 1;
};

// Ends with a kEnd token. Throws Error (kCorruptData, kUnsupported). `source`: valid UTF-8.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace oscar::engine::jinja
