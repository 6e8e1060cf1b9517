// POST /tokenize and /detokenize, GET /tokenizer_info (serving.md 3): what a client without a tokenizer of its own needs.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "src/engine/runtime/engine.h"
#include "src/engine/serve/api_error.h"
#include "src/engine/serve/completion_call.h"

namespace oscar::engine {

// Bodies of the answers, or why there is none. {prompt, add_special_tokens = true, return_token_strs = false} or {messages, tools,
// add_generation_prompt = true, chat_template_kwargs} -> {count, max_model_len, tokens, token_strs}; {tokens} -> {prompt}.
std::variant<std::string, ApiError> TokenizeBody(std::string_view body, const ServedModel& model);
std::variant<std::string, ApiError> DetokenizeBody(std::string_view body, const Engine& engine);
std::string TokenizerInfoBody(Engine& engine, int context);

}  // namespace oscar::engine
