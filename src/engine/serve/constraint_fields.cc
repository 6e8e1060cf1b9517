#include "src/engine/serve/constraint_fields.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kMostBytes = 65'536, kMostChoices = 1024;

void Fail(RequestFields& fields, const char* code, const std::string& param, const std::string& what) {
  const std::string path = fields.path() + param;
  fields.Fail(ApiError::Invalid(code, path, path + ": " + what));
}

void ReadFormat(RequestFields& fields, const json& format, Constraint* constraint) {
  constraint->param = "response_format";
  const json type = format.value("type", json());
  if (type == "text") return;
  if (type == "json_object") {
    constraint->kind = Constraint::Kind::kObject;
    return;
  }
  if (type != "json_schema") return Fail(fields, "invalid_value", "response_format.type", "must be \"text\", \"json_object\" or \"json_schema\"");
  const json described = format.value("json_schema", json());
  constraint->param = "response_format.json_schema";
  if (!described.is_object()) return Fail(fields, "missing_required_parameter", constraint->param, "is required");
  const json schema = described.value("schema", json()), strict = described.value("strict", json());
  constraint->param += ".schema";
  if (!schema.is_object() && !schema.is_boolean()) return Fail(fields, "missing_required_parameter", constraint->param, "must be a JSON schema");
  if (!strict.is_null() && !strict.is_boolean()) return Fail(fields, "invalid_type", "response_format.json_schema.strict", "must be true or false");
  constraint->kind = Constraint::Kind::kSchema;
  constraint->text = schema.dump();
  constraint->strict = strict == json(true);
}

void ReadStructured(RequestFields& fields, const json& outputs, Constraint* constraint) {
  int given = 0;
  for (const auto& [name, value] : outputs.items()) {
    if (value.is_null()) continue;
    constraint->param = "structured_outputs." + name;
    ++given;
    const bool text = value.is_string();
    if (name == "json" && (value.is_object() || value.is_boolean())) {
      constraint->kind = Constraint::Kind::kSchema;
      constraint->text = value.dump();
    } else if (name == "json" && text && io::ParseJson(value.get<std::string>()).ok()) {
      constraint->kind = Constraint::Kind::kSchema;
      constraint->text = value.get<std::string>();
    } else if (name == "json_object" && value == json(true)) {
      constraint->kind = Constraint::Kind::kObject;
    } else if ((name == "regex" || name == "grammar") && text) {
      constraint->kind = name == "regex" ? Constraint::Kind::kRegex : Constraint::Kind::kEbnf;
      constraint->text = value.get<std::string>();
    } else if (name == "choice" && value.is_array() && !value.empty() && value.size() <= kMostChoices) {
      constraint->kind = Constraint::Kind::kChoice;
      for (const json& choice : value) {
        if (!choice.is_string() || choice.get<std::string>().empty()) return Fail(fields, "invalid_type", constraint->param, "must be a list of texts");
        constraint->choices.push_back(choice.get<std::string>());
        constraint->text += choice.get<std::string>();
      }
    } else if (name == "json" || name == "json_object" || name == "regex" || name == "grammar" || name == "choice") {
      return Fail(fields, "invalid_type", constraint->param, "has the wrong type");
    } else {
      return Fail(fields, "unsupported_parameter", "structured_outputs." + Quoted(name), "is not supported");
    }
  }
  if (given != 1) Fail(fields, "invalid_value", "structured_outputs", "must have exactly one of json, json_object, regex, choice, grammar");
}

}  // namespace

Constraint ReadConstraint(RequestFields& fields, const json& body) {
  Constraint constraint;
  const bool has_format = fields.Object("response_format") != nullptr, has_outputs = fields.Object("structured_outputs") != nullptr;
  if (!fields.ok()) return constraint;
  if (has_format) ReadFormat(fields, body["response_format"], &constraint);
  if (has_outputs && constraint.kind != Constraint::Kind::kNone) {
    Fail(fields, "invalid_value", "structured_outputs", "cannot stand beside response_format");
  } else if (has_outputs) {
    ReadStructured(fields, body["structured_outputs"], &constraint);
  }
  if (constraint.text.size() > kMostBytes) {
    Fail(fields, "schema_too_complex", constraint.param, fmt::format("{} bytes, at most {}", constraint.text.size(), kMostBytes));
  }
  constraint.param = fields.path() + constraint.param;
  return constraint;
}

std::string ConstraintJson(const Constraint& constraint) {
  switch (constraint.kind) {
    case Constraint::Kind::kNone: break;
    case Constraint::Kind::kObject: return json({{"json_object", true}}).dump();
    case Constraint::Kind::kSchema: return json({{"json", json::parse(constraint.text)}}).dump();
    case Constraint::Kind::kRegex: return json({{"regex", constraint.text}}).dump();
    case Constraint::Kind::kChoice: return json({{"choice", constraint.choices}}).dump();
    case Constraint::Kind::kEbnf: return json({{"grammar", constraint.text}}).dump();
  }
  return "";
}

}  // namespace oscar::engine
