// oscar_render_chat: renders chat templates for the oracle test. Standard input is a JSON array of cases, standard
// output the array of their results, {"text"} or {"code", "message"}. A case is
//   {"template", "bos", "eos", "messages", "tools", "add_generation_prompt", "extra"}: through ChatTemplate, or
//   {"template", "variables", "now"}: the template language alone.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "src/engine/text/chat/chat_template.h"
#include "src/engine/text/jinja/json_text.h"
#include "src/engine/text/jinja/template.h"

namespace oscar::engine {
namespace {

using Json = nlohmann::ordered_json;

std::string TextOr(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string JsonOr(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() ? found->dump() : std::string();
}

Result<std::string> RenderChat(const Json& test) {
  Result<ChatTemplate> made = ChatTemplate::Create(TextOr(test, "template"), TextOr(test, "bos"), TextOr(test, "eos"));
  if (!made.ok()) return made.status();
  ChatRequest request;
  for (const Json& message : test.at("messages")) {
    request.messages.push_back({TextOr(message, "role"), TextOr(message, "content"), JsonOr(message, "tool_calls"),
                                TextOr(message, "tool_call_id"), TextOr(message, "name")});
  }
  request.tools_json = JsonOr(test, "tools");
  request.add_generation_prompt = test.at("add_generation_prompt").get<bool>();
  request.extra_json = JsonOr(test, "extra");
  return made->Render(request);
}

Result<std::string> RenderSnippet(const Json& test) {
  Result<jinja::Template> made = jinja::Template::Parse(TextOr(test, "template"));
  if (!made.ok()) return made.status();
  std::map<std::string, jinja::Value, std::less<>> variables;
  for (const auto& [name, value] : test.at("variables").items()) {
    Result<jinja::Value> parsed = jinja::ParseJson(value.dump());
    if (!parsed.ok()) return parsed.status();
    variables[name] = std::move(parsed).value();
  }
  jinja::RenderOptions options;
  options.now = test.at("now").get<std::time_t>();
  return made->Render(std::move(variables), options);
}

int Run() {
  const std::string input((std::istreambuf_iterator<char>(std::cin)), {});
  Json results = Json::array();
  for (const Json& test : Json::parse(input)) {
    const Result<std::string> text = test.contains("messages") ? RenderChat(test) : RenderSnippet(test);
    if (text.ok()) {
      results.push_back({{"text", text.value()}});
    } else {
      results.push_back({{"code", StatusCodeName(text.status().code())}, {"message", text.status().message()}});
    }
  }
  std::cout << results.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace oscar::engine

int main() {
  try {
    return oscar::engine::Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oscar_render_chat: %s\n", error.what());
    return 2;
  }
}
