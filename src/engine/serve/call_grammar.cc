#include "src/engine/serve/call_grammar.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "src/base/status_macros.h"
#include "src/engine/text/grammar/json_schema.h"
#include "src/engine/text/grammar/json_values.h"

namespace oscar::engine {
namespace {

using grammar::RuleSet;
using json = nlohmann::ordered_json;
using E = grammar::Expression;

constexpr const char* kDefinitions[] = {"$defs", "definitions"};
constexpr int kMostReferences = 16;
constexpr size_t kLongestKeyword = 200;

// The schema behind "#/$defs/NAME" of `root`; the schema itself where it refers to nothing, or to what is not there.
const json& Followed(const json& schema, const json& root) {
  const json* at = &schema;
  for (int i = 0; i < kMostReferences && at->is_object() && at->contains("$ref") && (*at)["$ref"].is_string(); ++i) {
    const std::string pointer = (*at)["$ref"].get<std::string>();
    const json* target = nullptr;
    for (const std::string name : kDefinitions) {
      const std::string begin = "#/" + name + "/";
      if (pointer.starts_with(begin) && root.contains(name) && root[name].is_object() && root[name].contains(pointer.substr(begin.size()))) {
        target = &root[name][pointer.substr(begin.size())];
      }
    }
    if (target == nullptr) break;
    at = target;
  }
  return *at;
}

bool TakesText(const json& given, const json& root, int depth = 0) {
  const json& schema = Followed(given, root);
  if (!schema.is_object() || depth > kMostReferences) return false;
  if (const auto found = schema.find("enum"); found != schema.end() && found->is_array()) {
    return !found->empty() && std::ranges::all_of(*found, [](const json& value) { return value.is_string(); });
  }
  if (const auto found = schema.find("const"); found != schema.end()) return found->is_string();
  if (const auto found = schema.find("type"); found != schema.end()) {
    return *found == "string" || (found->is_array() && std::ranges::find(*found, json("string")) != found->end());
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto found = schema.find(keyword);
    if (found == schema.end() || !found->is_array()) continue;
    return std::ranges::any_of(*found, [&](const json& branch) { return TakesText(branch, root, depth + 1); });
  }
  return false;
}

json SchemaOf(const ToolUse::Tool& tool) { return tool.parameters.empty() ? json::object() : json::parse(tool.parameters); }

// A schema for the whole object of arguments.
Result<E> Arguments(const ToolUse::Tool& tool, RuleSet* rules, std::vector<std::string>* ignored) {
  if (tool.parameters.empty()) return E::Rule(grammar::AddJsonObject(rules));
  json schema = SchemaOf(tool);
  if (!schema.contains("type") && !schema.contains("$ref") && !schema.contains("anyOf") && !schema.contains("oneOf")) schema["type"] = "object";
  auto added = grammar::AddJsonSchema(schema, {.strict = tool.strict}, rules, ignored);
  if (!added.ok()) return added.status().WithContext("tool " + tool.name);
  return E::Rule(*added);
}

// How one of the formats with markers around each parameter writes it.
struct ParameterNotation {
  std::string before_key, before_value, end;  // the end comes first behind the value
};

// A text as it is: one of its enumeration, or any in which the end does not occur. Other keywords cannot be kept to.
Result<E> TextValue(const ToolUse::Tool& tool, const json& schema, const std::string& gap, const std::string& end, std::vector<std::string>* ignored) {
  std::vector<E> choices;
  const auto add = [&](const json& value) {
    choices.push_back(E::Bytes(value.get<std::string>() + gap + end));
  };
  if (const auto found = schema.find("enum"); found != schema.end()) {
    for (const json& value : *found) add(value);
    return E::Choice(std::move(choices));
  }
  if (const auto found = schema.find("const"); found != schema.end()) {
    add(*found);
    return E::Choice(std::move(choices));
  }
  for (const char* keyword : {"pattern", "minLength", "maxLength", "format"}) {
    if (!schema.contains(keyword)) continue;
    if (tool.strict) {
      return {StatusCode::kUnsupported, "tool " + tool.name + ": the keyword " + keyword + " of a text is not supported in this model's notation of calls"};
    }
    ignored->push_back(keyword);
  }
  return E::Until(end);
}

struct ParameterOf {
  const ToolUse::Tool& tool;
  const json& schema;  // of all its parameters
  const std::string& key;
};

// The value of a parameter as JSON, with the definitions that its schema may refer to.
Result<E> JsonValue(const ParameterOf& parameter, grammar::JsonWords words, RuleSet* rules, std::vector<std::string>* ignored) {
  const auto& [tool, schema, key] = parameter;
  json whole = schema["properties"][key];
  for (const char* name : kDefinitions) {
    if (whole.is_object() && schema.contains(name)) whole[name] = schema[name];
  }
  auto added = grammar::AddJsonSchema(whole, {.strict = tool.strict, .words = words}, rules, ignored);
  if (!added.ok()) return added.status().WithContext("tool " + tool.name + ", " + key);
  return E::Rule(*added);
}

bool IsRequired(const json& schema, const std::string& key) {
  const json required = schema.value("required", json::array());
  return required.is_array() && std::ranges::find(required, json(key)) != required.end();
}

// KEY=VALUE with commas between, in the order of the schema.
Result<E> Keywords(const ToolUse::Tool& tool, RuleSet* rules, std::vector<std::string>* ignored) {
  const E comma = E::Bytes(", "), letter = E::CodePoints({{'A', 'Z'}, {'_', '_'}, {'a', 'z'}}), further = E::CodePoints({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  const json schema = SchemaOf(tool), properties = schema.value("properties", json::object());
  if (!properties.is_object() || properties.empty()) {
    if (schema.contains("properties") || schema.value("additionalProperties", json()) == json(false)) return E::Bytes("");
    const E any = E::Sequence({letter, E::Repeat(further, 0, 63), E::Bytes("="), grammar::JsonValues(rules, grammar::JsonWords::kPython).Any()});
    return grammar::InOrder({}, any, comma, "keywords", rules);
  }
  std::vector<grammar::Member> members;
  for (const auto& [key, property] : properties.items()) {
    const bool is_name = !key.empty() && !std::isdigit(static_cast<unsigned char>(key[0])) &&
                         std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) || c == '_' || c >= 0x80; });
    if (!is_name || key.size() > kLongestKeyword) {
      return Status(StatusCode::kUnsupported, "tool " + tool.name + ": a parameter that is no name in Python has no place in this model's notation of calls");
    }
    OSCAR_ASSIGN_OR_RETURN(E value, JsonValue({tool, schema, key}, grammar::JsonWords::kPython, rules, ignored));
    members.push_back({E::Sequence({E::Bytes(key + "="), std::move(value)}), IsRequired(schema, key)});
  }
  return grammar::InOrder(members, std::nullopt, comma, "keywords of " + tool.name, rules);
}

// One parameter after the other in the order of the schema; those that are not required may be left out.
Result<E> Parameters(const ToolUse::Tool& tool, const ParameterNotation& notation, RuleSet* rules, std::vector<std::string>* ignored) {
  const json schema = SchemaOf(tool);
  const json properties = schema.value("properties", json::object());
  // Values of Qwen3-Coder stand on lines of their own.
  const std::string gap = notation.before_value.ends_with('\n') ? "\n" : "";
  const E behind = E::Bytes("\n");
  if (!properties.is_object() || properties.empty()) {
    const E letter = E::CodePoints({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    if (schema.contains("properties") || schema.value("additionalProperties", json()) == json(false)) return E::Bytes("");
    return E::Repeat(E::Sequence({E::Bytes(notation.before_key), E::Repeat(letter, 1, 64), E::Bytes(notation.before_value), E::Until(notation.end), behind}), 0, E::kNoLimit);
  }
  std::vector<E> all;
  for (const auto& [key, property] : properties.items()) {
    if (key.empty() || key.find_first_of("<>\n") != std::string::npos) {
      return Status(StatusCode::kUnsupported, "tool " + tool.name + ": a parameter whose name is empty or has <, > or a line end has no place in this model's notation of calls");
    }
    std::vector<E> one = {E::Bytes(notation.before_key + key + notation.before_value)};
    if (TakesText(property, schema)) {
      OSCAR_ASSIGN_OR_RETURN(E value, TextValue(tool, Followed(property, schema), gap, notation.end, ignored));
      one.push_back(std::move(value));
    } else {
      OSCAR_ASSIGN_OR_RETURN(E value, JsonValue({tool, schema, key}, grammar::JsonWords::kJson, rules, ignored));
      one.push_back(std::move(value));
      one.push_back(E::Bytes(gap + notation.end));
    }
    one.push_back(behind);
    all.push_back(IsRequired(schema, key) ? E::Sequence(std::move(one)) : E::Optional(E::Sequence(std::move(one))));
  }
  return E::Sequence(std::move(all));
}

// What stands behind the marker of a call of this tool, its end included.
Result<E> CallBody(const ToolUse::Tool& tool, const AnswerParser::Options& parser, RuleSet* rules, std::vector<std::string>* ignored) {
  switch (parser.format) {
    case ToolFormat::kQwenCoder: {
      OSCAR_ASSIGN_OR_RETURN(E parameters, Parameters(tool, {"<parameter=", ">\n", "</parameter>"}, rules, ignored));
      return E::Sequence({E::Bytes("\n<function=" + tool.name + ">\n"), std::move(parameters), E::Bytes("</function>\n</tool_call>")});
    }
    case ToolFormat::kGlm: {
      OSCAR_ASSIGN_OR_RETURN(E parameters, Parameters(tool, {"<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"}, rules, ignored));
      return E::Sequence({E::Bytes(tool.name + "\n"), std::move(parameters), E::Bytes("</tool_call>")});
    }
    case ToolFormat::kMistralNamed: {
      OSCAR_ASSIGN_OR_RETURN(E arguments, Arguments(tool, rules, ignored));
      const E id = E::Repeat(E::CodePoints({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}), 9, 9);
      const E call_id = parser.call_ids ? E::Optional(E::Sequence({E::Bytes("[CALL_ID]"), id})) : E::Bytes("");
      return E::Sequence({E::Bytes(tool.name), call_id, E::Bytes("[ARGS]"), std::move(arguments)});
    }
    case ToolFormat::kPythonic: {
      OSCAR_ASSIGN_OR_RETURN(E keywords, Keywords(tool, rules, ignored));
      return E::Sequence({E::Bytes(tool.name + "("), std::move(keywords), E::Bytes(")")});
    }
    default: break;
  }
  OSCAR_ASSIGN_OR_RETURN(E arguments, Arguments(tool, rules, ignored));
  const char* key = parser.format == ToolFormat::kLlama3 ? "parameters" : "arguments";
  E object = E::Sequence({E::Bytes("{\"name\": " + json(tool.name).dump() + ", \"" + key + "\": "), std::move(arguments), E::Bytes("}")});
  if (parser.format != ToolFormat::kHermes) return object;
  return E::Sequence({E::Bytes("\n"), std::move(object), E::Bytes("\n</tool_call>")});
}

}  // namespace

Result<E> CallText(const CallDemand& demand, RuleSet* rules, std::vector<std::string>* ignored) {
  std::vector<E> bodies;
  for (const ToolUse::Tool& tool : demand.tools.tools) {
    OSCAR_ASSIGN_OR_RETURN(E body, CallBody(tool, demand.parser, rules, ignored));
    bodies.push_back(std::move(body));
  }
  E body = E::Rule(rules->Add("call", E::Choice(std::move(bodies))));
  const bool must = demand.tools.choice == ToolUse::Choice::kRequired;
  bool more = demand.tools.parallel;
  const bool is_pythonic = demand.parser.format == ToolFormat::kPythonic;
  if (is_pythonic || demand.parser.format == ToolFormat::kLlama3) {
    const E further = E::Repeat(E::Sequence({E::Bytes(", "), body}), 0, more ? E::kNoLimit : 0);
    if (is_pythonic) body = E::Sequence({E::Bytes("["), body, further, E::Bytes("]")});
    if (must || demand.no_text) return body;
    const char32_t begin = is_pythonic ? '[' : '{';
    const E letter = E::CodePoints(grammar::Complement({{begin, begin}, {' ', ' '}, {'\n', '\n'}}));
    return E::Choice({body, E::Bytes(""), E::Sequence({letter, E::Repeat(E::CodePoints({{0, 0x10FFFF}}), 0, E::kNoLimit)})});
  }
  const std::string marker(CallMarker(demand.parser.format));
  if (demand.parser.format == ToolFormat::kMistral) {  // one list, which ends the answer
    const E further = E::Repeat(E::Sequence({E::Bytes(", "), body}), 0, more ? E::kNoLimit : 0);
    body = E::Sequence({E::Optional(E::Bytes(" ")), E::Bytes("["), body, further, E::Bytes("]")});
    more = false;
  }
  const E marked = E::Sequence({E::Bytes(marker), body});
  if (must || demand.no_text) {
    const E between = E::Bytes(marker == "<tool_call>" ? "\n" : "");
    return E::Sequence({marked, E::Repeat(E::Sequence({between, marked}), 0, more ? E::kNoLimit : 0)});
  }
  const E with_text = E::Sequence({E::Until(marker), body});
  const E text = E::Without(marker);
  if (!more) return E::Choice({text, with_text});
  return E::Sequence({E::Repeat(with_text, 0, E::kNoLimit), text});
}

std::shared_ptr<const TextParameters> TextParametersOf(const ToolUse& tools) {
  auto texts = std::make_shared<TextParameters>();
  for (const ToolUse::Tool& tool : tools.tools) {
    const json schema = SchemaOf(tool), properties = schema.value("properties", json::object());
    if (!properties.is_object()) continue;
    for (const auto& [key, property] : properties.items()) {
      if (TakesText(property, schema)) (*texts)[tool.name].insert(key);
    }
  }
  return texts;
}

}  // namespace oscar::engine
