// Answers in JSON, and errors in the shape of the OpenAI API.
#pragma once

#include <string>
#include <utility>

#include "src/engine/serve/api_error.h"
#include "src/engine/serve/http_server.h"

namespace oscar::engine {

inline void SendJson(HttpResponder& responder, int status, HttpFields fields, std::string body) {
  fields.emplace_back("Content-Type", "application/json");
  responder.Send(status, std::move(fields), std::move(body));
}

inline void SendError(HttpResponder& responder, HttpFields fields, const ApiError& error) {
  for (auto& field : error.RetryFields()) fields.push_back(std::move(field));
  SendJson(responder, error.status, std::move(fields), error.Body());
}

}  // namespace oscar::engine
