// Template: a parsed template of the Jinja subset that chat templates use, with the settings of Hugging Face:
// trim_blocks, lstrip_blocks, break and continue, {% generation %} as if it were not there, raise_exception,
// strftime_now, tojson without HTML escapes, no autoescape, methods that change a list or dict closed. What differs
// from Jinja is refused with kUnsupported, apart from case mapping (unicode_text.h) and from errors that Jinja finds
// early, by folding constants, in a branch that is never taken.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/engine/text/jinja/syntax_tree.h"

namespace oscar::engine::jinja {

struct RenderOptions {
  Limits limits;
  std::optional<std::time_t> now;  // what strftime_now sees; none: the clock
};

class Template {
 public:
  // kCorruptData, kUnsupported or kResourceExhausted with line and construct. At most 256 KiB of UTF-8.
  static Result<Template> Parse(std::string_view source);

  // The rendered text. kInvalidArgument with line and reason where Jinja would raise, raise_exception included;
  // kUnsupported and kResourceExhausted alike. Thread-safe unless two calls share an iterator in `variables`.
  Result<std::string> Render(std::map<std::string, Value, std::less<>> variables,
                             const RenderOptions& options = {}) const;

 private:
  explicit Template(StatementList body) : body_(std::move(body)) {}
  StatementList body_;
};

}  // namespace oscar::engine::jinja
