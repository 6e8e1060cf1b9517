#include "src/engine/text/chat/chat_template.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/engine/text/jinja/json_text.h"
#include "src/engine/text/jinja/template.h"
#include "src/engine/text/jinja/unicode_text.h"

namespace oscar::engine {
namespace {

using jinja::Value;
using Entries = std::vector<std::pair<Value, Value>>;
using Variables = std::map<std::string, Value, std::less<>>;

// Texts of a request are handed on as they are; only their size, which bounded the request, bounds them.
jinja::Budget InputBudget() {
  jinja::Limits limits;
  limits.max_steps = limits.max_bytes = INT64_MAX / 2;
  return jinja::Budget(limits);
}

Value TextValue(std::string text) { return Value(std::make_shared<const std::string>(std::move(text))); }

Result<Value> CheckedText(std::string_view text, const std::string& what) {
  if (!jinja::IsValidUtf8(text)) return Status(StatusCode::kInvalidArgument, what + " is not valid UTF-8");
  return TextValue(std::string(text));
}

Result<Value> JsonValue(std::string_view text, const std::string& what) {
  Result<Value> value = jinja::ParseJson(text);
  if (!value.ok()) return value.status().WithContext(what + " is not usable JSON");
  return value;
}

Result<Value> JsonList(std::string_view text, const std::string& what) {
  OSCAR_ASSIGN_OR_RETURN(Value value, JsonValue(text, what));
  if (value.sequence() == nullptr) return Status(StatusCode::kInvalidArgument, what + " must be a JSON array");
  return value;
}

// The message as transformers hands it to a template: absent fields are absent, and a turn that only calls tools has
// the content None.
Result<Value> MessageValue(const ChatMessage& message, size_t index) {
  const std::string where = "messages[" + std::to_string(index) + "].";
  Entries entries;
  if (message.role.empty()) return Status(StatusCode::kInvalidArgument, where + "role is empty");
  OSCAR_ASSIGN_OR_RETURN(Value role, CheckedText(message.role, where + "role"));
  OSCAR_ASSIGN_OR_RETURN(Value content, CheckedText(message.content, where + "content"));
  entries.emplace_back(TextValue("role"), std::move(role));
  const bool only_calls = !message.tool_calls_json.empty() && message.content.empty();
  entries.emplace_back(TextValue("content"), only_calls ? Value(jinja::None{}) : std::move(content));
  if (!message.tool_calls_json.empty()) {
    OSCAR_ASSIGN_OR_RETURN(Value calls, JsonList(message.tool_calls_json, where + "tool_calls"));
    entries.emplace_back(TextValue("tool_calls"), std::move(calls));
  }
  for (const auto& [name, text] :
       {std::pair{"tool_call_id", &message.tool_call_id}, std::pair{"name", &message.name},
        std::pair{"reasoning_content", &message.reasoning_content}}) {
    if (text->empty()) continue;
    OSCAR_ASSIGN_OR_RETURN(Value value, CheckedText(*text, where + name));
    entries.emplace_back(TextValue(name), std::move(value));
  }
  jinja::Budget budget = InputBudget();
  return jinja::MakeDict(std::move(entries), budget);
}

// All that a template sees of a request. Throws jinja::Error on values nested too deeply.
Result<Variables> RequestVariables(const ChatRequest& request) {
  Variables variables;
  variables["tools"] = variables["documents"] = jinja::None{};
  if (!request.extra_json.empty()) {
    OSCAR_ASSIGN_OR_RETURN(const Value extra, JsonValue(request.extra_json, "the extra template variables"));
    if (extra.dict() == nullptr) {
      return Status(StatusCode::kInvalidArgument, "the extra template variables must be a JSON object");
    }
    for (const auto& [key, value] : extra.dict()->entries) {
      const std::string& name = *key.text();
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        return Status(StatusCode::kInvalidArgument, "the template variable '" + name + "' cannot be an extra one");
      }
      variables[name] = value;
    }
  }
  std::vector<Value> messages;
  for (const ChatMessage& message : request.messages) {
    OSCAR_ASSIGN_OR_RETURN(Value value, MessageValue(message, messages.size()));
    messages.push_back(std::move(value));
  }
  if (!request.tools_json.empty()) {
    OSCAR_ASSIGN_OR_RETURN(variables["tools"], JsonList(request.tools_json, "tools"));
  }
  variables["add_generation_prompt"] = request.add_generation_prompt;
  jinja::Budget budget = InputBudget();
  variables["messages"] = jinja::MakeSequence(jinja::SequenceKind::kList, std::move(messages), budget);
  return variables;
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Template source;
  std::string bos, eos;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Result<ChatTemplate> ChatTemplate::Create(std::string_view jinja_source, std::string bos, std::string eos) {
  Result<jinja::Template> source = jinja::Template::Parse(jinja_source);
  if (!source.ok()) return source.status().WithContext("chat template");
  if (!jinja::IsValidUtf8(bos) || !jinja::IsValidUtf8(eos)) {
    return Status(StatusCode::kCorruptData, "chat template: the text of the BOS or EOS token is not valid UTF-8");
  }
  ChatTemplate chat_template;
  chat_template.impl_ = std::make_unique<Impl>(Impl{std::move(source).value(), std::move(bos), std::move(eos)});
  return chat_template;
}

Result<std::string> ChatTemplate::Render(const ChatRequest& request) const {
  Result<Variables> variables = Variables();
  try {
    variables = RequestVariables(request);
  } catch (const jinja::Error& error) {
    return Status(error.code, "chat request: " + error.message);
  }
  if (!variables.ok()) return variables.status();
  // What the request names goes before what the tokenizer gives, as in transformers.
  if (!impl_->bos.empty()) variables->try_emplace("bos_token", TextValue(impl_->bos));
  if (!impl_->eos.empty()) variables->try_emplace("eos_token", TextValue(impl_->eos));
  Result<std::string> prompt = impl_->source.Render(std::move(variables).value());
  if (!prompt.ok()) return prompt.status().WithContext("chat template");
  return prompt;
}

}  // namespace oscar::engine
