// Files of JSON lines, plain or compressed with gzip.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <utility>
#include <vector>

#include "oscar/result.h"

namespace oscar::io {

// One object per line; empty lines are left out. kNotFound, kIoError (also a damaged gzip stream), kResourceExhausted above
// 2 GiB of text, kCorruptData with the line of what is no JSON object; all name the path.
Result<std::vector<nlohmann::json>> ReadJsonLines(const std::filesystem::path& path);

// Appends one object per line, each on disk (as far as the process goes) before Write returns, so that an interrupted run keeps
// what it has.
class JsonLinesWriter {
 public:
  enum class Mode { kTruncate, kAppend };
  // kIoError naming the path.
  static Result<JsonLinesWriter> Open(const std::filesystem::path& path, Mode mode);
  // Bytes that are not UTF-8 become U+FFFD. kIoError naming the path.
  Status Write(const nlohmann::ordered_json& object);

 private:
  JsonLinesWriter(std::filesystem::path path, std::ofstream file) : path_(std::move(path)), file_(std::move(file)) {}
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace oscar::io
