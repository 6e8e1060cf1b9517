// Files of JSON lines, plain or compressed with gzip.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "oscar/result.h"

namespace oscar::io {

// One object per line; empty lines are left out. kNotFound, kIoError (also a damaged gzip stream), kResourceExhausted above
// 2 GiB of text, kCorruptData with the line of what is no JSON object; all name the path.
Result<std::vector<nlohmann::json>> ReadJsonLines(const std::filesystem::path& path);

}  // namespace oscar::io
