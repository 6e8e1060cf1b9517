// `tools`, `tool_choice` and `parallel_tool_calls` of a chat request (serving.md 8).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/engine/serve/request_fields.h"

namespace oscar::engine {

struct ToolUse {
  enum class Choice { kNone, kAuto, kRequired };
  struct Tool {
    std::string name;
    std::string parameters;  // a JSON schema, members in the order of the request; empty: any object
    bool strict = false;
  };
  Choice choice = Choice::kNone;
  std::vector<Tool> tools;   // that may be called
  bool parallel = true;      // more than one call in an answer; never of a function that tool_choice names
  std::string json;          // all tools, for the template; empty without any
};

// `body`: the request with its members in order.
ToolUse ReadTools(RequestFields& fields, const nlohmann::ordered_json& body);

}  // namespace oscar::engine
