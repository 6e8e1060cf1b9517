// `response_format` and `structured_outputs`: what an answer's text must be (serving.md 8).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/engine/serve/request_fields.h"

namespace oscar::engine {

struct Constraint {
  enum class Kind { kNone, kObject, kSchema, kRegex, kChoice, kEbnf };
  Kind kind = Kind::kNone;
  std::string text;                  // the schema as JSON, members in the order of the request; the expression; the grammar
  std::vector<std::string> choices;
  bool strict = false;               // of kSchema
  std::string param;                 // the member that errors are about
};

// `body`: the request with its members in order.
Constraint ReadConstraint(RequestFields& fields, const nlohmann::ordered_json& body);

// `structured_outputs` that says the same; empty for kNone.
std::string ConstraintJson(const Constraint& constraint);

}  // namespace oscar::engine
