// AnswerFormat: how a family of models writes tool calls and its reasoning, read off its chat template (serving.md 8).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/result.h"
#include "src/engine/text/chat/message.h"
#include "src/engine/text/tokenizer.h"

namespace oscar::engine {

// How a call is written:
//   kHermes        <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call> (Qwen and others)
//   kQwenCoder     <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call> (Qwen3-Coder)
//   kGlm           <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call> (GLM from 4.5 on)
//   kMistral       [TOOL_CALLS] [{"name": ..., "arguments": ...}, ...], the end of the answer
//   kMistralNamed  [TOOL_CALLS]NAME[ARGS]{...}, with [CALL_ID]ID before [ARGS] in some (Mistral's from version 11 of its tokenizer on)
//   kLlama3        the whole answer is {"name": ..., "parameters": ...}
//   kPythonic      the whole answer is [NAME(KEY=VALUE, ...), ...] with values as Python writes them (Llama 3.2 and 4)
//   kUnknown       the template has tools in a way that is not known here
// VALUE is the text itself where the schema takes a text, and JSON elsewhere.
enum class ToolFormat { kHermes, kQwenCoder, kGlm, kMistral, kMistralNamed, kLlama3, kPythonic, kUnknown };

struct AnswerFormat {
  ToolFormat tools = ToolFormat::kHermes;
  bool template_has_tools = false;  // otherwise DescribeTools says in words what there is
  bool reasoning = false;           // <think> ... </think>
  bool call_ids = false;            // kMistralNamed: [CALL_ID] stands before [ARGS]
};

// What begins a call; empty where a call is the whole answer, and for kUnknown.
std::string_view CallMarker(ToolFormat format);

AnswerFormat DetectAnswerFormat(std::string_view template_source);

// The format that a template is said to have: `parser` is one of the names by which vLLM and SGLang know it. kInvalidArgument for another name, and for
// a template without tools unless they are told in this format (DescribeTools).
Result<AnswerFormat> AnswerFormatNamed(std::string_view parser, std::string_view template_source);

// What to say when the template shows calls in another notation than `parser` reads; empty when it does not, or in one that is not known.
// Precondition: AnswerFormatNamed takes them.
std::string ToolParserWarning(std::string_view parser, std::string_view template_source);

// "hermes, qwen3_coder, ..."
std::string ToolParserNames();

// Tokens that vocabularies may have as control tokens and that calls and reasoning in this format are told by: they must appear as text.
std::vector<int32_t> MarkerTokens(const Tokenizer& tokenizer, const AnswerFormat& format);

// Whether a prompt ends inside of the reasoning that its template began.
bool OpensReasoning(std::string_view prompt);

// For templates without tools: the tools as a system message, calls and results in the turns as text, all in the Hermes notation. The
// request then has no tools any more.
void DescribeTools(ChatRequest* request);

// tool_calls of a message for a template: `arguments`, a text in the API, as the object that it spells. kInvalidArgument naming
// the call for what is no tool call.
Result<std::string> CallsForTemplate(const nlohmann::ordered_json& calls);

}  // namespace oscar::engine
