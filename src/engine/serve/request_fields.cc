#include "src/engine/serve/request_fields.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

namespace oscar::engine {

using nlohmann::json;

bool IsHarmlessName(const std::string& name) {
  return !name.empty() && name.size() <= 64 &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; });
}

std::optional<int32_t> TokenId(const json& value, int vocab_size) {
  if (!value.is_number() || value < 0 || value >= vocab_size) return std::nullopt;
  const double number = value.get<double>();
  return number == std::floor(number) ? std::optional<int32_t>(static_cast<int32_t>(number)) : std::nullopt;
}

RequestFields::RequestFields(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

const json* RequestFields::Find(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void RequestFields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void RequestFields::WrongType(const char* name, const char* wanted) {
  Fail(ApiError::Invalid("invalid_type", path_ + name, fmt::format("{}{}: must be {}", path_, name, wanted)));
}

std::optional<double> RequestFields::Number(const char* name, double low, double high) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return WrongType(name, "a number"), std::nullopt;
  const double number = value->get<double>();
  if (number >= low && number <= high) return number;
  Fail(ApiError::Invalid("invalid_value", path_ + name, fmt::format("{}{}: must be between {} and {}, not {}", path_, name, low, high, number)));
  return std::nullopt;
}

std::optional<int64_t> RequestFields::Integer(const char* name, int64_t low, int64_t high) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto out_of_range = [&] {
    Fail(ApiError::Invalid("invalid_value", path_ + name, fmt::format("{}{}: must be between {} and {}", path_, name, low, high)));
    return std::nullopt;
  };
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const auto large = value->get<uint64_t>();
    if (large > static_cast<uint64_t>(INT64_MAX)) return out_of_range();
    number = static_cast<int64_t>(large);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float() && value->get<double>() == std::floor(value->get<double>())) {
    if (std::abs(value->get<double>()) > 9e15) return out_of_range();
    number = static_cast<int64_t>(value->get<double>());
  } else {
    return WrongType(name, "an integer"), std::nullopt;
  }
  if (number < low || number > high) return out_of_range();
  return number;
}

std::optional<bool> RequestFields::Bool(const char* name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return WrongType(name, "true or false"), std::nullopt;
  return value->get<bool>();
}

std::optional<std::string> RequestFields::Text(const char* name) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return WrongType(name, "a string"), std::nullopt;
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> RequestFields::Texts(const char* name, size_t most, size_t most_bytes) {
  const json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  const json list = value->is_string() ? json::array({*value}) : *value;
  if (!list.is_array()) return WrongType(name, "a string or a list of strings"), std::nullopt;
  for (const json& entry : list) {
    if (!entry.is_string()) return WrongType(name, "a string or a list of strings"), std::nullopt;
    texts.push_back(entry.get<std::string>());
    if (texts.back().empty() || texts.back().size() > most_bytes || texts.size() > most) {
      Fail(ApiError::Invalid("invalid_value", path_ + name,
                             fmt::format("{}{}: at most {} strings of 1 to {} bytes", path_, name, most, most_bytes)));
      return std::nullopt;
    }
  }
  return texts;
}

std::vector<int32_t> RequestFields::Tokens(const char* name, size_t most, int vocab_size) {
  std::vector<int32_t> tokens;
  const json* list = Array(name);
  if (list == nullptr) return tokens;
  for (const json& entry : *list) {
    const std::optional<int32_t> token = TokenId(entry, vocab_size);
    if (tokens.size() == most || !token) {
      Fail(ApiError::Invalid("invalid_value", path_ + name, fmt::format("{}{}: at most {} token ids from 0 to {}", path_, name, most, vocab_size - 1)));
      return {};
    }
    tokens.push_back(*token);
  }
  return tokens;
}

const json* RequestFields::Array(const char* name) {
  const json* value = Find(name);
  if (value == nullptr || value->is_array()) return value;
  return WrongType(name, "a list"), nullptr;
}

const json* RequestFields::Object(const char* name) {
  const json* value = Find(name);
  if (value == nullptr || value->is_object()) return value;
  return WrongType(name, "an object"), nullptr;
}

const json* RequestFields::Any(const char* name) { return Find(name); }

void RequestFields::Ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void RequestFields::Refuse(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const json* value = Find(name);
    if (value == nullptr || *value == json(false) || (value->is_array() && value->empty())) continue;
    Fail(ApiError::Invalid("unsupported_parameter", path_ + name, fmt::format("{}{}: is not supported", path_, name)));
  }
}

void RequestFields::Join(const RequestFields& inner) {
  if (!inner.ok()) Fail(inner.error());
  for (const std::string& name : inner.Unknown()) unknown_inside_.push_back(inner.path_ + name);
}

std::vector<std::string> RequestFields::Unknown() const {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (IsHarmlessName(name) && names.size() < 16) names.push_back(name);
  };
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) add(name);
  }
  std::ranges::for_each(unknown_inside_, add);
  return names;
}

}  // namespace oscar::engine
