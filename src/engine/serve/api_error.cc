#include "src/engine/serve/api_error.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace oscar::engine {

std::string JsonText(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ApiError::Body() const {
  nlohmann::ordered_json error = {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code}};
  if (!param.empty()) error["param"] = param;
  for (const auto& [name, value] : extras) error[name] = value;
  return JsonText({{"error", std::move(error)}});
}

std::vector<std::pair<std::string, std::string>> ApiError::RetryFields() const {
  if (status != 429 && status != 503) return {};
  const double seconds = retry_after_seconds > 0 ? retry_after_seconds : 1;
  return {{"retry-after", std::to_string(static_cast<int64_t>(std::ceil(seconds)))}, {"retry-after-ms", std::to_string(static_cast<int64_t>(seconds * 1000))}};
}

ApiError FromStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument: return ApiError::Invalid("invalid_value", "", status.message());
    case StatusCode::kResourceExhausted: return {429, "rate_limit_error", "queue_full", "", status.message(), {}};
    case StatusCode::kFailedPrecondition:
    case StatusCode::kCancelled: return {503, "service_unavailable_error", "draining", "", status.message(), {}};
    case StatusCode::kNonFinite: return {500, "server_error", "numeric_error", "", status.message(), {}};
    default: return {500, "server_error", "internal_error", "", "internal error", {}};
  }
}

ApiError FromHttpStatus(int status, std::string_view reason) {
  ApiError error{status, "invalid_request_error", "invalid_request", "", std::string(reason), {}};
  switch (status) {
    case 404: error.code = "unknown_url"; break;
    case 405: error.code = "method_not_allowed"; break;
    case 408: error.code = "request_timeout"; break;
    case 413: error.code = "body_too_large"; break;
    case 415: error.code = "unsupported_media_type"; break;
    case 414:
    case 431: error.code = "headers_too_large"; break;
    case 500: error.type = "server_error", error.code = "internal_error"; break;
    case 503: error.type = "service_unavailable_error", error.code = "too_many_connections"; break;
    default: break;
  }
  return error;
}

std::string Quoted(std::string_view text) {
  std::string quoted(text.substr(0, 200));
  for (char& c : quoted) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return quoted + (text.size() > 200 ? "..." : "");
}

}  // namespace oscar::engine
