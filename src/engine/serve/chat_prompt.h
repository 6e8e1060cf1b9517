// The messages of a chat request, and the prompt that the model's template makes of them (serving.md 4 and 7).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/engine/runtime/engine.h"
#include "src/engine/serve/request_fields.h"
#include "src/engine/serve/tool_fields.h"
#include "src/engine/text/chat/answer_format.h"

namespace oscar::engine {

struct ChatPrompt {
  std::vector<int32_t> tokens;
  bool reasoning_open = false;  // it ends inside of <think>
};

// Messages, chat_template_kwargs, reasoning_effort, add_generation_prompt, continue_final_message. `body`: the request with its members in
// order. What people wrote never becomes a control token.
ChatPrompt ReadChatPrompt(RequestFields& fields, const nlohmann::ordered_json& body, const Engine& engine, const AnswerFormat& format,
                          const ToolUse& tools);

}  // namespace oscar::engine
