// Template source to a syntax tree.
#pragma once

#include <string_view>

#include "src/engine/text/jinja/syntax_tree.h"

namespace oscar::engine::jinja {

// Throws Error with a line: kCorruptData on a syntax error, kUnsupported on a tag, filter or test that we do not have,
// kResourceExhausted on nesting beyond kMaxSourceDepth. `source`: valid UTF-8.
StatementList Parse(std::string_view source);

}  // namespace oscar::engine::jinja
