// Errors of the OpenAI API (serving.md 9): a status, and a body {"error": {message, type, param, code}} with named extras.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/result.h"

namespace oscar::engine {

struct ApiError {
  int status = 500;
  std::string type = "server_error", code = "internal_error", param, message;
  std::vector<std::pair<std::string, int64_t>> extras = {};  // more members of "error"
  double retry_after_seconds = 0;  // of 429 and 503; 0: one second

  static ApiError Invalid(std::string code, std::string param, std::string message) {
    return {400, "invalid_request_error", std::move(code), std::move(param), std::move(message), {}};
  }
  std::string Body() const;
  // retry-after and retry-after-ms of a refusal that time heals; nothing for the others.
  std::vector<std::pair<std::string, std::string>> RetryFields() const;
};

// The error that fits a Status of the scheduler, the template or the tokenizer.
ApiError FromStatus(const Status& status);
// The error that the HTTP layer answers by itself.
ApiError FromHttpStatus(int status, std::string_view reason);

// At most 200 bytes of a text from outside, control characters as '?', for messages.
std::string Quoted(std::string_view text);

// Text of a JSON value; bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& value);

}  // namespace oscar::engine
