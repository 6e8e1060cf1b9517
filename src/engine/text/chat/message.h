// Chat messages as OpenAI's API has them, before a template turns them into a prompt.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace oscar::engine {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant", "tool"
  std::string content;
  std::string tool_calls_json;  // JSON array as in OpenAI's API, or empty
  std::string tool_call_id;     // for role "tool"
  std::string name;
  std::string reasoning_content;  // of an assistant's turn; templates that show it read it
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::string tools_json;           // JSON array of tool definitions, or empty
  bool add_generation_prompt = true;
  std::string extra_json;           // further template variables (enable_thinking, ...), a JSON object or empty
};

}  // namespace oscar::engine
