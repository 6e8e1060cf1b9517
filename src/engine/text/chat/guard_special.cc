#include "src/engine/text/chat/guard_special.h"

#include <algorithm>
#include <vector>

#include "src/engine/text/utf8.h"

namespace oscar::engine {
namespace {

std::vector<std::string*> Texts(ChatRequest* request) {
  std::vector<std::string*> texts = {&request->tools_json, &request->extra_json};
  for (ChatMessage& message : request->messages) {
    for (std::string* text : {&message.role, &message.content, &message.tool_calls_json, &message.tool_call_id, &message.name, &message.reasoning_content}) {
      texts.push_back(text);
    }
  }
  return texts;
}

}  // namespace

Result<std::string> GuardSpecialText(const Tokenizer& tokenizer, ChatRequest* request) {
  const std::vector<std::string*> texts = Texts(request);
  if (std::ranges::all_of(texts, [&](const std::string* text) { return tokenizer.NextControl(*text, 0) == std::string::npos; })) return std::string();
  std::string guard;
  for (uint32_t c = 0xFDD0; c <= 0xFDEF; ++c) {
    guard.clear();
    AppendUtf8(c, &guard);
    if (std::ranges::all_of(texts, [&](const std::string* text) { return text->find(guard) == std::string::npos; })) break;
    if (c == 0xFDEF) return Status(StatusCode::kInvalidArgument, "the texts use every noncharacter from U+FDD0 to U+FDEF and look like control tokens");
  }
  for (std::string* text : texts) {
    // Behind the first character of each look-alike: what is left of it may hold another one.
    for (size_t at = tokenizer.NextControl(*text, 0); at != std::string::npos; at = tokenizer.NextControl(*text, at)) {
      at += NextUtf8(std::string_view(*text).substr(at)).size;
      text->insert(at, guard);
      at += guard.size();
    }
  }
  return guard;
}

}  // namespace oscar::engine
