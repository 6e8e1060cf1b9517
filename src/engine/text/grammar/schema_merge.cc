#include "src/engine/text/grammar/schema_merge.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"

namespace oscar::engine::grammar {
namespace {

using json = nlohmann::ordered_json;

std::set<std::string> Types(const json& schema) {
  std::set<std::string> types;
  const auto found = schema.find("type");
  if (found == schema.end()) return types;
  for (const json& type : found->is_array() ? *found : json::array({*found})) {
    if (type.is_string()) types.insert(type.get<std::string>());
  }
  if (types.contains("number")) types.insert("integer");
  return types;
}

std::vector<json> Constants(const json& schema) {
  if (const auto found = schema.find("const"); found != schema.end()) return {*found};
  const auto found = schema.find("enum");
  return found != schema.end() && found->is_array() ? found->get<std::vector<json>>() : std::vector<json>();
}

bool Requires(const json& schema, const std::string& name) {
  const auto found = schema.find("required");
  return found != schema.end() && found->is_array() && std::ranges::find(*found, json(name)) != found->end();
}

// Whether `closed` allows no members but its own, and `other` names more.
bool ShutsOut(const json& closed, const json& other) {
  const auto additional = closed.find("additionalProperties"), properties = other.find("properties");
  if (additional == closed.end() || *additional != json(false) || properties == other.end() || !properties->is_object()) return false;
  const auto own = closed.find("properties");
  return !std::ranges::all_of(properties->items(), [&](const auto& member) { return own != closed.end() && own->contains(member.key()); });
}

Result<json> MergeValues(const std::string& key, json one, const json& other, const std::string& path) {
  if (key == "properties" && one.is_object() && other.is_object()) {
    for (const auto& [name, schema] : other.items()) {
      if (one.contains(name)) {
        OSCAR_ASSIGN_OR_RETURN(one[name], MergeSchemas(one[name], schema, path + "/properties/" + name));
      } else {
        one[name] = schema;
      }
    }
    return one;
  }
  if (key == "required" && one.is_array() && other.is_array()) {
    for (const json& name : other) {
      if (std::ranges::find(one, name) == one.end()) one.push_back(name);
    }
    return one;
  }
  if (key.starts_with("min") && one.is_number() && other.is_number()) return one < other ? other : one;
  if (key.starts_with("max") && one.is_number() && other.is_number()) return one < other ? one : other;
  if (key == "type") {
    const std::set<std::string> first = Types({{"type", one}}), second = Types({{"type", other}});
    json both = json::array();
    for (const std::string& type : first) {
      const bool within_number = type == "integer" && first.contains("number") && second.contains("number");
      if (second.contains(type) && !within_number) both.push_back(type);
    }
    if (!both.empty()) return both;
  }
  return Status(StatusCode::kUnsupported, path + ": two different " + key + " cannot be joined");
}

}  // namespace

bool IsAnnotation(const std::string& keyword) {
  static const std::set<std::string> kAnnotations = {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default",
                                                     "examples", "example", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding"};
  return kAnnotations.contains(keyword);
}

Result<nlohmann::ordered_json> MergeSchemas(json one, const json& other, const std::string& path) {
  if (other == json(true)) return one;
  if (one == json(true)) return other;
  if (!one.is_object() || !other.is_object()) return Status(StatusCode::kUnsupported, path + ": a schema that fits nothing");
  if (ShutsOut(one, other) || ShutsOut(other, one)) return Status(StatusCode::kUnsupported, path + ": additionalProperties shuts out members of a joined schema");
  for (const auto& [key, value] : other.items()) {
    if (!one.contains(key)) {
      one[key] = value;
    } else if (one[key] != value && !IsAnnotation(key)) {
      OSCAR_ASSIGN_OR_RETURN(one[key], MergeValues(key, one[key], value, path));
    }
  }
  return one;
}

bool AreDisjoint(const json& one, const json& other) {
  if (!one.is_object() || !other.is_object()) return false;
  const std::set<std::string> types = Types(one), other_types = Types(other);
  if (!types.empty() && !other_types.empty() && std::ranges::none_of(types, [&](const std::string& type) { return other_types.contains(type); })) return true;
  const std::vector<json> constants = Constants(one), other_constants = Constants(other);
  const auto shares = [](const std::vector<json>& a, const std::vector<json>& b) {
    return std::ranges::any_of(a, [&](const json& value) { return std::ranges::find(b, value) != b.end(); });
  };
  if (!constants.empty() && !other_constants.empty()) return !shares(constants, other_constants);
  const auto members = one.find("properties"), other_members = other.find("properties");
  if (members == one.end() || other_members == other.end() || !members->is_object() || !other_members->is_object()) return false;
  return std::ranges::any_of(members->items(), [&](const auto& member) {
    const auto found = other_members->find(member.key());
    return found != other_members->end() && Requires(one, member.key()) && Requires(other, member.key()) && AreDisjoint(member.value(), *found);
  });
}

}  // namespace oscar::engine::grammar
