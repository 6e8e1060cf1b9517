#include "src/engine/serve/chat_prompt.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "src/engine/text/chat/guard_special.h"

namespace oscar::engine {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostMessages = 4096;

// The text of a message: a string, or parts of type text.
std::optional<std::string> ContentText(const json& content, const std::string& path, RequestFields& fields) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    fields.Fail(ApiError::Invalid("invalid_type", path, path + ": must be a string or a list of parts"));
    return std::nullopt;
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text") || !part["text"].is_string()) {
      fields.Fail(ApiError::Invalid("unsupported_content", at, at + ": only parts {\"type\": \"text\", \"text\": ...} are supported"));
      return std::nullopt;
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

// One message; `ordered`: the same with its members in order.
ChatMessage ReadMessage(const json& entry, const ordered_json& ordered, const std::string& path, RequestFields& fields) {
  RequestFields message(entry, path + ".");
  ChatMessage read;
  const auto fail = [&](const char* code, const char* name, const std::string& what) {
    fields.Fail(ApiError::Invalid(code, path + name, path + name + ": " + what));
  };
  read.role = message.Text("role").value_or("");
  if (read.role == "developer") read.role = "system";  // the older word, which every template knows
  read.name = message.Text("name").value_or("");
  read.tool_call_id = message.Text("tool_call_id").value_or("");
  const auto reasoning = message.Text("reasoning_content"), other_name = message.Text("reasoning");
  read.reasoning_content = reasoning.value_or(other_name.value_or(""));
  message.Ignore({"refusal", "annotations"});
  message.Refuse({"function_call", "audio"});
  const json* content = message.Any("content");
  const json* calls = message.Array("tool_calls");
  if (!message.ok()) {
    fields.Fail(message.error());
    return read;
  }
  if (read.role != "system" && read.role != "user" && read.role != "assistant" && read.role != "tool") {
    fail("invalid_value", ".role", "must be system, developer, user, assistant or tool, not \"" + Quoted(read.role) + "\"");
  } else if (calls != nullptr && !calls->empty() && read.role != "assistant") {
    fail("invalid_value", ".tool_calls", "only an assistant calls tools");
  } else if (read.role == "tool" && read.tool_call_id.empty()) {
    fail("missing_required_parameter", ".tool_call_id", "is required");
  } else if (content == nullptr && (calls == nullptr || calls->empty())) {
    fail("missing_required_parameter", ".content", "is required");
  } else {
    if (content != nullptr) read.content = ContentText(*content, path + ".content", fields).value_or("");
    if (calls != nullptr && !calls->empty()) {
      const auto told = CallsForTemplate(ordered["tool_calls"]);
      if (!told.ok()) {
        fields.Fail(ApiError::Invalid("invalid_value", path + ".tool_calls", path + "." + told.status().message()));
      } else {
        read.tool_calls_json = *told;
      }
    }
  }
  return read;
}

std::vector<ChatMessage> ReadMessages(RequestFields& fields, const ordered_json& body) {
  const json* list = fields.Array("messages");
  std::vector<ChatMessage> messages;
  if (!fields.ok()) return messages;
  if (list == nullptr) {
    fields.Fail(ApiError::Invalid("missing_required_parameter", "messages", "messages: is required"));
    return messages;
  }
  if (list->empty() || list->size() > kMostMessages) {
    fields.Fail(ApiError::Invalid("invalid_value", "messages", fmt::format("messages: must have 1 to {} entries", kMostMessages)));
  }
  for (size_t i = 0; fields.ok() && i < list->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*list)[i].is_object()) {
      fields.Fail(ApiError::Invalid("invalid_type", path, path + ": must be an object"));
    } else {
      messages.push_back(ReadMessage((*list)[i], body["messages"][i], path, fields));
    }
  }
  return messages;
}

// Variables for the template: chat_template_kwargs, and what reasoning_effort means to it.
std::string TemplateVariables(RequestFields& fields, const std::string& template_source) {
  json variables = json::object();
  if (const json* given = fields.Object("chat_template_kwargs")) variables = *given;
  const auto effort = fields.Text("reasoning_effort");
  if (effort) {
    static constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    if (std::ranges::find(kEfforts, *effort) == std::end(kEfforts)) {
      fields.Fail(ApiError::Invalid("invalid_value", "reasoning_effort", "reasoning_effort: must be none, minimal, low, medium, high or xhigh"));
    }
    if (*effort == "none") {
      variables["enable_thinking"] = false;
    } else if (template_source.find("reasoning_effort") != std::string::npos) {
      variables["reasoning_effort"] = *effort;
    }
  }
  return variables.empty() ? "" : variables.dump();
}

}  // namespace

ChatPrompt ReadChatPrompt(RequestFields& fields, const ordered_json& body, const Engine& engine, const AnswerFormat& format, const ToolUse& tools) {
  ChatRequest chat;
  chat.messages = ReadMessages(fields, body);
  chat.tools_json = tools.json;
  const bool continues = fields.Bool("continue_final_message").value_or(false);
  chat.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(!continues);
  const std::string source = engine.model().metadata().StringOr("tokenizer.chat_template", "").ok()
                                 ? *engine.model().metadata().StringOr("tokenizer.chat_template", "") : "";
  chat.extra_json = TemplateVariables(fields, source);
  const auto fail = [&](const char* code, const char* param, const std::string& what) { fields.Fail(ApiError::Invalid(code, param, what)); };
  if (fields.ok() && continues && (chat.add_generation_prompt || chat.messages.back().role != "assistant")) {
    fail("invalid_value", "continue_final_message", "continue_final_message: needs an assistant's message at the end and add_generation_prompt: false");
  }
  if (!fields.ok()) return {};
  if (engine.chat_template() == nullptr) return fail("template_error", "messages", "this model has no chat template: use /v1/completions"), ChatPrompt();
  if (!format.template_has_tools) DescribeTools(&chat);
  const auto guard = GuardSpecialText(engine.tokenizer(), &chat);
  if (!guard.ok()) return fail("invalid_value", "messages", guard.status().message()), ChatPrompt();
  auto prompt = engine.chat_template()->Render(chat);
  if (!prompt.ok()) return fail("template_error", "messages", prompt.status().message()), ChatPrompt();
  if (continues) {
    // Behind the last words of the last message; templates may have cut the space around them.
    const std::string& last = chat.messages.back().content;
    const size_t end = last.find_last_not_of(" \n\t");
    const size_t at = end == std::string::npos ? std::string::npos : prompt->rfind(last.substr(0, end + 1));
    if (at == std::string::npos) return fail("template_error", "messages", "the template does not show the last message"), ChatPrompt();
    prompt->resize(at + end + 1);
  }
  auto tokens = engine.tokenizer().Encode(*prompt, {.add_special = false, .parse_special = true, .guard = *guard});
  if (!tokens.ok()) return fields.Fail(FromStatus(tokens.status())), ChatPrompt();
  return {*std::move(tokens), format.reasoning && OpensReasoning(*prompt)};
}

}  // namespace oscar::engine
