#include "src/engine/text/chat/answer_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/io/json_file.h"

namespace oscar::engine {
namespace {

using json = nlohmann::ordered_json;

constexpr std::pair<std::string_view, ToolFormat> kToolParsers[] = {
    {"hermes", ToolFormat::kHermes}, {"qwen3_coder", ToolFormat::kQwenCoder}, {"glm45", ToolFormat::kGlm}, {"mistral", ToolFormat::kMistral},
    {"llama3_json", ToolFormat::kLlama3}, {"pythonic", ToolFormat::kPythonic}};

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

AnswerFormat DetectAnswerFormat(std::string_view source) {
  AnswerFormat format;
  format.reasoning = Has(source, "<think>");
  format.template_has_tools = Has(source, "tools");
  if (!format.template_has_tools) return format;
  format.call_ids = Has(source, "[CALL_ID]");
  if (Has(source, "<function=")) {
    format.tools = ToolFormat::kQwenCoder;
  } else if (Has(source, "<arg_key>")) {
    format.tools = ToolFormat::kGlm;
  } else if (Has(source, "[TOOL_CALLS]")) {
    format.tools = Has(source, "[ARGS]") ? ToolFormat::kMistralNamed : ToolFormat::kMistral;
  } else if (Has(source, "<tool_call>")) {
    format.tools = ToolFormat::kHermes;
  } else if (Has(source, "func_name1(")) {  // as their prompts put it: [func_name1(params_name1=params_value1, ...), func_name2(params)]
    format.tools = ToolFormat::kPythonic;
  } else if (Has(source, "\"parameters\"") && Has(source, "ipython")) {
    format.tools = ToolFormat::kLlama3;
  } else {
    format.tools = ToolFormat::kUnknown;
  }
  return format;
}

Result<AnswerFormat> AnswerFormatNamed(std::string_view parser, std::string_view source) {
  const auto named = std::ranges::find(kToolParsers, parser, &std::pair<std::string_view, ToolFormat>::first);
  if (named == std::end(kToolParsers)) {
    return Status(StatusCode::kInvalidArgument, "'" + std::string(parser) + "' is none of " + ToolParserNames());
  }
  AnswerFormat format = DetectAnswerFormat(source);
  if (!format.template_has_tools && named->second != ToolFormat::kHermes) {
    return Status(StatusCode::kInvalidArgument, "'" + std::string(parser) + "': the chat template of this model has no tools, and they are told to it as for hermes");
  }
  // One name for both of Mistral's.
  format.tools = named->second == ToolFormat::kMistral && Has(source, "[ARGS]") ? ToolFormat::kMistralNamed : named->second;
  return format;
}

std::string ToolParserWarning(std::string_view parser, std::string_view source) {
  const AnswerFormat shown = DetectAnswerFormat(source);
  const Result<AnswerFormat> named = AnswerFormatNamed(parser, source);
  if (!named.ok() || !shown.template_has_tools || shown.tools == ToolFormat::kUnknown || shown.tools == named->tools) return "";
  const ToolFormat known = shown.tools == ToolFormat::kMistralNamed ? ToolFormat::kMistral : shown.tools;
  const auto* name = std::ranges::find(kToolParsers, known, &std::pair<std::string_view, ToolFormat>::second);
  return "--tool-parser " + std::string(parser) + ": the chat template shows calls as " + std::string(name->first) + " does; a call written so will be taken for text";
}

std::string ToolParserNames() {
  std::string names;
  for (const auto& [name, format] : kToolParsers) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

std::string_view CallMarker(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
    case ToolFormat::kQwenCoder:
    case ToolFormat::kGlm: return "<tool_call>";
    case ToolFormat::kMistral:
    case ToolFormat::kMistralNamed: return "[TOOL_CALLS]";
    case ToolFormat::kLlama3:
    case ToolFormat::kPythonic:
    case ToolFormat::kUnknown: break;
  }
  return "";
}

std::vector<int32_t> MarkerTokens(const Tokenizer& tokenizer, const AnswerFormat& format) {
  std::vector<std::string_view> markers;
  if (format.reasoning) markers = {"<think>", "</think>"};
  const std::string_view call = CallMarker(format.tools);
  if (format.template_has_tools && call == "<tool_call>") {
    markers.insert(markers.end(), {call, "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"});
  } else if (format.template_has_tools && !call.empty()) {
    markers.insert(markers.end(), {call, "[CALL_ID]", "[ARGS]"});
  }
  std::vector<int32_t> tokens;
  for (const std::string_view marker : markers) {
    if (const int32_t token = tokenizer.FindControl(marker); token >= 0) tokens.push_back(token);
  }
  return tokens;
}

bool OpensReasoning(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(" \n");
  return end != std::string_view::npos && prompt.substr(0, end + 1).ends_with("<think>");
}

void DescribeTools(ChatRequest* request) {
  if (!request->tools_json.empty()) {
    std::string text =
        "You may call functions to help with the user's query. The functions, as JSON within <tools></tools>:\n<tools>\n";
    for (const json& tool : json::parse(request->tools_json)) text += tool.dump() + "\n";
    text +=
        "</tools>\n\nFor a call, answer with a JSON object of the function's name and arguments within <tool_call></tool_call>:\n"
        "<tool_call>\n{\"name\": <function-name>, \"arguments\": <arguments-object>}\n</tool_call>";
    request->tools_json.clear();
    if (!request->messages.empty() && request->messages[0].role == "system") {
      request->messages[0].content += "\n\n" + text;
    } else {
      request->messages.insert(request->messages.begin(), {"system", text, "", "", "", ""});
    }
  }
  for (ChatMessage& message : request->messages) {
    if (!message.tool_calls_json.empty()) {
      for (const json& call : json::parse(message.tool_calls_json)) {
        const json told = {{"name", call["function"]["name"]}, {"arguments", call["function"]["arguments"]}};
        message.content += (message.content.empty() ? "" : "\n") + std::string("<tool_call>\n") + told.dump() + "\n</tool_call>";
      }
      message.tool_calls_json.clear();
    }
    if (message.role == "tool") {
      message.role = "user";
      message.content = "<tool_response>\n" + message.content + "\n</tool_response>";
      message.tool_call_id.clear();
    }
  }
}

Result<std::string> CallsForTemplate(const json& calls) {
  json told = json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto wrong = [i](const char* what) { return Status(StatusCode::kInvalidArgument, "tool_calls[" + std::to_string(i) + "]" + what); };
    json call = calls[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) return wrong(".function: is required");
    json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string()) return wrong(".function.name: must be a string");
    if (!function.contains("arguments")) return wrong(".function.arguments: is required");
    if (function["arguments"].is_string()) {
      const std::string text = function["arguments"].get<std::string>();
      // The strict parser first: it knows limits, which writing and copying a value by recursion need.
      const auto checked = io::ParseJson(text);
      if (checked.ok() && checked->is_object()) function["arguments"] = json::parse(text);
    }
    told.push_back(std::move(call));
  }
  return told.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace oscar::engine
