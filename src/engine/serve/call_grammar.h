// The grammar of tool calls in a model's notation (answer_format.h): what the sampling of an answer with tools keeps to (serving.md 8).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oscar/result.h"
#include "src/engine/serve/tool_fields.h"
#include "src/engine/text/chat/answer_parser.h"
#include "src/engine/text/grammar/expression.h"

namespace oscar::engine {

struct CallDemand {
  const ToolUse& tools;
  const AnswerParser::Options& parser;
  bool no_text = false;  // another text stands instead of calls, and none around them
};

// Calls where the answer must have them, or free text in which calls may stand. Errors of schemas, with the tool's name; `ignored`: keywords
// that are not kept to.
Result<grammar::Expression> CallText(const CallDemand& demand, grammar::RuleSet* rules, std::vector<std::string>* ignored);

// The parameters that take a text, by their schemas.
std::shared_ptr<const TextParameters> TextParametersOf(const ToolUse& tools);

}  // namespace oscar::engine
