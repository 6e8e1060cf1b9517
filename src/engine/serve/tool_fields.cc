#include "src/engine/serve/tool_fields.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace oscar::engine {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMostTools = 256;

bool IsToolName(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
}

void ReadList(RequestFields& fields, const json& list, ToolUse* use) {
  const auto fail = [&](const std::string& code, const std::string& path, const std::string& what) {
    fields.Fail(ApiError::Invalid(code, path, path + ": " + what));
  };
  if (list.size() > kMostTools) return fail("invalid_value", "tools", fmt::format("at most {} tools", kMostTools));
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    const json& tool = list[i];
    if (!tool.is_object() || tool.value("type", json()) != "function") return fail("invalid_value", path + ".type", "must be \"function\"");
    const json function = tool.value("function", json());
    if (!function.is_object()) return fail("missing_required_parameter", path + ".function", "is required");
    const json name = function.value("name", json());
    if (!name.is_string() || !IsToolName(name.get<std::string>())) {
      return fail("invalid_value", path + ".function.name", "must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -");
    }
    ToolUse::Tool one;
    one.name = name.get<std::string>();
    if (!names.insert(one.name).second) return fail("invalid_value", path + ".function.name", "two tools are called " + one.name);
    const json parameters = function.value("parameters", json()), strict = function.value("strict", json());
    if (!parameters.is_null() && !parameters.is_object()) return fail("invalid_type", path + ".function.parameters", "must be a JSON schema");
    if (!strict.is_null() && !strict.is_boolean()) return fail("invalid_type", path + ".function.strict", "must be true or false");
    if (!parameters.is_null() && !parameters.empty()) one.parameters = parameters.dump();
    one.strict = strict == json(true);
    use->tools.push_back(std::move(one));
  }
  if (!list.empty()) use->json = list.dump();
}

// Keeps the tools of these names only.
void Restrict(RequestFields& fields, const std::set<std::string>& names, ToolUse* use) {
  for (const std::string& name : names) {
    if (std::ranges::find(use->tools, name, &ToolUse::Tool::name) == use->tools.end()) {
      return fields.Fail(ApiError::Invalid("invalid_value", "tool_choice", "tool_choice: there is no tool \"" + Quoted(name) + "\""));
    }
  }
  std::erase_if(use->tools, [&](const ToolUse::Tool& tool) { return !names.contains(tool.name); });
}

std::string NameOf(const json& tool) {
  const json function = tool.is_object() ? tool.value("function", json()) : json();
  const json name = function.is_object() ? function.value("name", json()) : json();
  return name.is_string() ? name.get<std::string>() : "";
}

void ReadChoice(RequestFields& fields, const json& choice, ToolUse* use) {
  const auto wrong = [&] {
    fields.Fail(ApiError::Invalid("invalid_value", "tool_choice", "tool_choice: must be \"none\", \"auto\", \"required\", a named function, or allowed_tools"));
  };
  if (choice == "none") {
    use->choice = ToolUse::Choice::kNone;
  } else if (choice == "auto") {
    use->choice = use->tools.empty() ? ToolUse::Choice::kNone : ToolUse::Choice::kAuto;
  } else if (choice == "required") {
    use->choice = ToolUse::Choice::kRequired;
  } else if (!choice.is_object()) {
    return wrong();
  } else if (choice.value("type", json()) == "function" && !NameOf(choice).empty()) {
    use->choice = ToolUse::Choice::kRequired;
    use->parallel = false;  // one call was asked for; a small model would repeat it until its tokens are gone
    Restrict(fields, {NameOf(choice)}, use);
  } else if (choice.value("type", json()) == "allowed_tools") {
    const json allowed = choice.value("allowed_tools", json());
    const json mode = allowed.is_object() ? allowed.value("mode", json()) : json(), list = allowed.is_object() ? allowed.value("tools", json()) : json();
    if ((mode != "auto" && mode != "required") || !list.is_array() || list.empty()) return wrong();
    use->choice = mode == "auto" ? ToolUse::Choice::kAuto : ToolUse::Choice::kRequired;
    std::set<std::string> names;
    for (const json& tool : list) names.insert(NameOf(tool));
    Restrict(fields, names, use);
  } else {
    return wrong();
  }
  if (use->choice == ToolUse::Choice::kRequired && use->tools.empty()) {
    fields.Fail(ApiError::Invalid("invalid_value", "tool_choice", "tool_choice: there are no tools to choose from"));
  }
}

}  // namespace

ToolUse ReadTools(RequestFields& fields, const json& body) {
  ToolUse use;
  fields.Array("tools");
  use.parallel = fields.Bool("parallel_tool_calls").value_or(true);
  fields.Any("tool_choice");
  if (!fields.ok()) return use;
  if (const auto list = body.find("tools"); list != body.end() && !list->is_null()) ReadList(fields, *list, &use);
  const json choice = body.value("tool_choice", json());
  if (fields.ok()) ReadChoice(fields, choice.is_null() ? json("auto") : choice, &use);
  if (use.choice == ToolUse::Choice::kNone) use.json.clear();
  return use;
}

}  // namespace oscar::engine
