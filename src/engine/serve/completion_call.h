// A call of /v1/chat/completions or /v1/completions, taken apart and checked (serving.md 4 to 6): everything that can be
// refused is refused here, before anything runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/engine/runtime/engine.h"
#include "src/engine/serve/api_error.h"
#include "src/engine/serve/scheduler.h"

namespace oscar::engine {

struct CompletionCall {
  bool chat = false;
  bool stream = false, include_usage = false;
  bool echo = false;                          // the prompt before the answer (completions only)
  int choices = 1;                            // n; each has its own seed
  std::vector<std::string> ignored_fields;    // for x-oscar-ignored-fields
  GenerationRequest request;                  // of choice 0
};

// `model_id`: the name under which the model is served. Tokenises and renders: not for an HTTP thread.
std::variant<CompletionCall, ApiError> ParseCompletionCall(bool chat, std::string_view body, const Engine& engine,
                                                           const std::string& model_id, int context);

}  // namespace oscar::engine
