// JSON from outside: a strict parser over nlohmann::json that reports position and reason as a Status, and files of it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "oscar/result.h"

namespace oscar::io {

inline constexpr int kMaxJsonDepth = 256;

// One JSON value (RFC 8259, UTF-8) and nothing after it but white space. kCorruptData with the byte offset for anything
// else, and for what the RFC leaves open: a key twice in one object, nesting deeper than kMaxJsonDepth, a NUL byte.
Result<nlohmann::json> ParseJson(std::string_view text);

// kNotFound, kIoError or kCorruptData, naming the path.
Result<nlohmann::json> ReadJsonFile(const std::filesystem::path& path);

// Indented by two spaces, keys in byte order, a newline at the end; written atomically (atomic_file.h).
Status WriteJsonFile(const std::filesystem::path& path, const nlohmann::json& value);

// `text` with every byte sequence that is not UTF-8 replaced by U+FFFD: strings of foreign files are made fit for JSON
// here.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace oscar::io
