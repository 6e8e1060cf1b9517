// Schemas that must hold together (allOf, members beside $ref, anyOf or oneOf) as one schema, where that can be said in one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "oscar/result.h"

namespace oscar::engine::grammar {

// What both demand. kUnsupported naming `path` and the keyword that cannot be joined.
Result<nlohmann::ordered_json> MergeSchemas(nlohmann::ordered_json one, const nlohmann::ordered_json& other, const std::string& path);

// Whether no document fits both, as far as types, constants and required constant members tell.
bool AreDisjoint(const nlohmann::ordered_json& one, const nlohmann::ordered_json& other);

// Keywords that demand nothing: titles, defaults, definitions.
bool IsAnnotation(const std::string& keyword);

}  // namespace oscar::engine::grammar
