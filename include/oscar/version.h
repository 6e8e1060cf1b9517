// The version of liboscar and of the program: Semantic Versioning over include/oscar, file formats and the command line.
// CMake reads it from here.
#pragma once

#include <string_view>

namespace oscar {
inline constexpr std::string_view kVersion = "0.1.0";
}  // namespace oscar
