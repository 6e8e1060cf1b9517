// JSON to values and back: the arguments that a template gets, and the filter `tojson` as Hugging Face defines it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "src/engine/text/jinja/value.h"

namespace oscar::engine::jinja {

// Objects keep the order of their keys. kInvalidArgument: not JSON, an integer beyond 64 bits, nesting beyond
// kMaxJsonDepth.
Result<Value> ParseJson(std::string_view text);

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; none: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps of Python: no HTML escapes. Fails on values that JSON does not have.
std::string DumpJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace oscar::engine::jinja
