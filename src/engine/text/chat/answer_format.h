// AnswerFormat: how a family of models writes tool calls and its reasoning, read off its chat template (serving.md 8).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/chat/message.h"

namespace oscar::engine {

// kHermes: <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call> (Qwen and others); kLlama3: the whole answer is
// {"name": ..., "parameters": ...}; kUnknown: the template has tools in a way that is not known here.
enum class ToolFormat { kHermes, kLlama3, kUnknown };

struct AnswerFormat {
  ToolFormat tools = ToolFormat::kHermes;
  bool template_has_tools = false;  // otherwise DescribeTools says in words what there is
  bool reasoning = false;           // <think> ... </think>
};

AnswerFormat DetectAnswerFormat(std::string_view template_source);

// Whether a prompt ends inside of the reasoning that its template began.
bool OpensReasoning(std::string_view prompt);

// For templates without tools: the tools as a system message, calls and results in the turns as text, all in the Hermes notation. The
// request then has no tools any more.
void DescribeTools(ChatRequest* request);

// tool_calls of a message for a template: `arguments`, a text in the API, as the object that it spells. kInvalidArgument naming
// the call for what is no tool call.
Result<std::string> CallsForTemplate(const nlohmann::ordered_json& calls);

}  // namespace oscar::engine
