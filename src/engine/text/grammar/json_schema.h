// JSON schemas as grammars (serving.md 8). Members come in the order in which the schema names them; more than the named ones only where
// `additionalProperties` allows them in words. Every text of the grammar validates; not every text that validates is one of it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/grammar/expression.h"
#include "src/engine/text/grammar/json_values.h"

namespace oscar::engine::grammar {

struct SchemaOptions {
  bool strict = false;  // a keyword that is not understood is an error, otherwise it goes to `ignored`
  JsonWords words = JsonWords::kJson;
};

// Adds rules for the documents of the schema and returns their number. kUnsupported naming place and keyword for what cannot be
// kept to; kInvalidArgument for what is no schema. `ignored`: "#/path keyword", may be null.
Result<int> AddJsonSchema(const nlohmann::ordered_json& schema, const SchemaOptions& options, RuleSet* rules, std::vector<std::string>* ignored);

// Any JSON object.
int AddJsonObject(RuleSet* rules);

}  // namespace oscar::engine::grammar
