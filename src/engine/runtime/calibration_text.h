// The calibration text that the program carries (design: quality.md 6, the text hardly matters): parts of about 8 kB of the
// repository's documentation and sources in turn, about 600 kB of UTF-8, made by cmake/calibration_text.cmake. It changes
// with the repository, so a profile made from it names the program's version.
#pragma once

#include <string_view>

namespace oscar::engine {

// Static; prose first; any prefix of 16 kB or more holds both prose and code.
std::string_view CalibrationText();

}  // namespace oscar::engine
