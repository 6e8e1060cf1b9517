// Writing a file so that readers and a crash see the old content or the new, never a part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

#include "oscar/result.h"

namespace oscar::io {

// Writes a temporary file beside `path`, syncs it to the disk and renames it over `path`. On an error (kIoError or
// kNotFound, naming the path and the system's reason) the temporary file is removed and `path` is as it was.
Status WriteFileAtomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

// The next part of a file that is written as it is made; empty: the end. A part must stay until the next call.
using FileParts = std::function<Result<std::span<const std::byte>>()>;
// The same in parts. An error of `next` is returned as it is.
Status WriteFileAtomically(const std::filesystem::path& path, const FileParts& next);

}  // namespace oscar::io
