#include "src/engine/text/chat/call_head.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace oscar::engine {
namespace {

constexpr std::string_view kSpace = " \n\r\t";
constexpr size_t kLongestName = 64, kLongestCallId = 64;

size_t SkipSpace(std::string_view text, size_t from) { return std::min(text.find_first_not_of(kSpace, from), text.size()); }

bool IsNameCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.'; }

// `token`, perhaps behind white space.
Scan Take(std::string_view text, std::string_view token, size_t* at) {
  const size_t begin = SkipSpace(text, *at);
  const std::string_view there = text.substr(begin, token.size());
  if (!token.starts_with(there)) return Scan::kBad;
  if (there.size() < token.size()) return Scan::kNeedsMore;
  *at = begin + token.size();
  return Scan::kFits;
}

// {"name": "...", "arguments": up to the value.
Scan ScanObject(std::string_view text, size_t at, CallHead* head) {
  for (const std::string_view token : {"{", "\"name\"", ":", "\""}) {
    if (const Scan scan = Take(text, token, &at); scan != Scan::kFits) return scan;
  }
  const size_t begin = at - 1;
  for (bool escaped = false;; ++at) {
    if (at >= text.size()) return Scan::kNeedsMore;
    if (text[at] == '"' && !escaped) break;
    escaped = text[at] == '\\' && !escaped;
  }
  const auto parsed = nlohmann::json::parse(text.substr(begin, ++at - begin), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_string()) return Scan::kBad;
  head->name = parsed.get<std::string>();
  if (const Scan scan = Take(text, ",", &at); scan != Scan::kFits) return scan;
  const size_t key = at;
  Scan scan = Take(text, "\"arguments\"", &at);
  if (scan == Scan::kBad) {
    at = key;
    scan = Take(text, "\"parameters\"", &at);
  }
  if (scan != Scan::kFits) return scan;
  if (scan = Take(text, ":", &at); scan != Scan::kFits) return scan;
  at = SkipSpace(text, at);
  if (at >= text.size()) return Scan::kNeedsMore;
  head->end = at;
  return text[at] == '{' ? Scan::kFits : Scan::kBad;
}

// A name, perhaps behind white space. `at` goes behind it.
Scan ScanName(std::string_view text, size_t* at, std::string* name) {
  const size_t begin = SkipSpace(text, *at);
  size_t end = begin;
  while (end < text.size() && IsNameCharacter(text[end])) ++end;
  if (end - begin > kLongestName) return Scan::kBad;
  if (end == text.size()) return Scan::kNeedsMore;
  if (end == begin) return Scan::kBad;
  *name = text.substr(begin, end - begin);
  *at = end;
  return Scan::kFits;
}

// NAME[ARGS]{ or NAME[CALL_ID]ID[ARGS]{, [ARGS] also left out: up to the brace.
Scan ScanNamed(std::string_view text, CallHead* head) {
  size_t at = 0;
  if (const Scan scan = ScanName(text, &at, &head->name); scan != Scan::kFits) return scan;
  std::string id;
  const size_t behind_name = at;
  Scan scan = ScanBetween(text, "[CALL_ID]", "[ARGS]", &at, &id);
  if (scan == Scan::kBad) {
    at = behind_name;
    if (scan = Take(text, "[ARGS]", &at); scan == Scan::kBad) scan = Scan::kFits;
  } else if (id.size() > kLongestCallId || (scan == Scan::kNeedsMore && text.size() - behind_name > kLongestCallId + 16)) {
    return Scan::kBad;
  }
  if (scan != Scan::kFits) return scan;
  at = SkipSpace(text, at);
  if (at >= text.size()) return Scan::kNeedsMore;
  head->end = at;
  return text[at] == '{' ? Scan::kFits : Scan::kBad;
}

}  // namespace

Scan ScanBetween(std::string_view text, std::string_view open, std::string_view close, size_t* at, std::string* between) {
  size_t begin = *at;
  if (!open.empty()) {
    if (const Scan scan = Take(text, open, &begin); scan != Scan::kFits) return scan;
  }
  const size_t end = text.find(close, begin);
  if (end == std::string_view::npos) return Scan::kNeedsMore;
  *between = text.substr(begin, end - begin);
  *at = end + close.size();
  return Scan::kFits;
}

Scan ScanCallHead(ToolFormat format, std::string_view text, bool in_list, CallHead* head) {
  *head = {};
  size_t at = 0;
  switch (format) {
    case ToolFormat::kQwenCoder: {
      if (const Scan scan = Take(text, "<function=", &at); scan != Scan::kFits) return scan;
      if (const Scan scan = ScanName(text, &at, &head->name); scan != Scan::kFits) return scan;
      const Scan scan = Take(text, ">", &at);
      head->end = at;
      return scan;
    }
    case ToolFormat::kGlm: {
      const Scan scan = ScanName(text, &at, &head->name);
      head->end = at;
      if (scan != Scan::kFits) return scan;
      at = SkipSpace(text, at);
      return at == text.size() ? Scan::kNeedsMore : text[at] == '<' ? Scan::kFits : Scan::kBad;
    }
    case ToolFormat::kMistral:
    case ToolFormat::kMistralNamed: {
      at = SkipSpace(text, 0);
      if (at == text.size()) return Scan::kNeedsMore;
      head->in_list = in_list || text[at] == '[';
      if (!head->in_list) return ScanNamed(text, head);
      return ScanObject(text, in_list ? at : at + 1, head);
    }
    case ToolFormat::kPythonic: {
      if (const Scan scan = in_list ? Scan::kFits : Take(text, "[", &at); scan != Scan::kFits) return scan;
      head->in_list = true;
      if (const Scan scan = ScanName(text, &at, &head->name); scan != Scan::kFits) return scan;
      const Scan scan = Take(text, "(", &at);
      head->end = at;
      return scan;
    }
    case ToolFormat::kHermes:
    case ToolFormat::kLlama3:
    case ToolFormat::kUnknown: break;
  }
  return ScanObject(text, 0, head);
}

}  // namespace oscar::engine
