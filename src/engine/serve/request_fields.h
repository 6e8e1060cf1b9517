// Reads the members of a request's JSON object with their types and ranges, and remembers the first thing that is wrong. Every
// member that was asked for is known; what is left at the end was not (serving.md 4).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/engine/serve/api_error.h"

namespace oscar::engine {

// Whether a name from outside may stand in a header field: 1 to 64 letters, digits, '_', '.' and '-'.
bool IsHarmlessName(const std::string& name);

// A token id below vocab_size; 1.0 is one, as everywhere.
std::optional<int32_t> TokenId(const nlohmann::json& value, int vocab_size);

class RequestFields {
 public:
  // The object must outlive it. `path` goes before names in errors ("stream_options.").
  RequestFields(const nlohmann::json& object, std::string path = "");

  // Nothing when the member is absent, null or wrong; a wrong one is an error. Types are strict: 1.0 is an integer, 1.5 and
  // "1" are not.
  std::optional<double> Number(const char* name, double low, double high);
  std::optional<int64_t> Integer(const char* name, int64_t low, int64_t high);
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> Text(const char* name);
  // A text or a list of texts.
  std::optional<std::vector<std::string>> Texts(const char* name, size_t most, size_t most_bytes);
  // Token ids below vocab_size; an empty list when absent.
  std::vector<int32_t> Tokens(const char* name, size_t most, int vocab_size);
  const nlohmann::json* Array(const char* name);
  const nlohmann::json* Object(const char* name);
  // Any value but null.
  const nlohmann::json* Any(const char* name);
  // Known, and without effect here.
  void Ignore(std::initializer_list<const char*> names);
  // Known, and not offered: an error unless absent, null, or (for bools) false.
  void Refuse(std::initializer_list<const char*> names);

  const std::string& path() const { return path_; }
  void Fail(ApiError error);
  // What is wrong and what is unknown in the object of a member, whose names begin with its path.
  void Join(const RequestFields& inner);
  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }  // precondition: not ok()
  // Members that nobody asked for, those of joined objects with their paths, at most 16, with harmless names only.
  std::vector<std::string> Unknown() const;

 private:
  const nlohmann::json* Find(const char* name);
  void WrongType(const char* name, const char* wanted);

  const nlohmann::json& object_;
  const std::string path_;
  std::set<std::string> known_;
  std::vector<std::string> unknown_inside_;  // of joined objects
  std::optional<ApiError> error_;
};

}  // namespace oscar::engine
