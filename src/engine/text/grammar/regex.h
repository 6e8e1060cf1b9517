// Regular expressions of JSON schemas and of the `regex` constraint: ECMA-262 syntax with the u flag, without look-around, back references,
// \b and \p. Lazy and possessive marks change nothing here: a language has no preferences.
#pragma once

#include <string_view>

#include "oscar/result.h"
#include "src/engine/text/grammar/expression.h"

namespace oscar::engine::grammar {

struct RegexOptions {
  bool whole = true;        // the pattern fits the whole text; otherwise it may stand anywhere in it, unless anchored by ^ and $
  bool json_string = false; // the text is the inside of a JSON string: what must be escaped there is
};

// kInvalidArgument with the place of the error, kUnsupported for the constructs that are left out.
Result<Expression> ParseRegex(std::string_view pattern, const RegexOptions& options);

// One of the code points; inside of a JSON string with the escape that it needs there.
Expression CodePointsIn(std::vector<CodePointRange> ranges, bool json_string);

}  // namespace oscar::engine::grammar
