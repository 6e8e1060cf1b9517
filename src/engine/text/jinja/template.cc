#include "src/engine/text/jinja/template.h"

#include <new>

#include "src/engine/text/jinja/evaluator.h"
#include "src/engine/text/jinja/parser.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{256} << 10;

Status StatusOf(const Error& error) {
  const std::string place = error.line > 0 ? "line " + std::to_string(error.line) + ": " : "";
  return Status(error.code, place + (error.code == StatusCode::kUnsupported ? "not supported: " : "") + error.message);
}

}  // namespace

Result<Template> Template::Parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return Status(StatusCode::kResourceExhausted,
                  "a template of " + std::to_string(source.size()) + " bytes; at most 262144 are read");
  }
  if (!IsValidUtf8(source)) return Status(StatusCode::kCorruptData, "the template is not valid UTF-8");
  try {
    return Template(jinja::Parse(source));
  } catch (const Error& error) {
    return StatusOf(error);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "no memory left while parsing a template");
  }
}

Result<std::string> Template::Render(std::map<std::string, Value, std::less<>> variables,
                                     const RenderOptions& options) const {
  try {
    Budget budget(options.limits);
    return Evaluator(budget, options.now.value_or(std::time(nullptr)), std::move(variables)).Run(body_);
  } catch (const Error& error) {
    return StatusOf(error);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted, "no memory left while rendering a template");
  }
}

}  // namespace oscar::engine::jinja
