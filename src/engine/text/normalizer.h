// Canonical composition of text (Unicode NFC, UAX #15), which some tokenizers apply before they
// split words.
#pragma once

#include <string>
#include <string_view>

namespace oscar::engine {

// `text` in NFC. Precondition: valid UTF-8. Time n log n at worst, also for text of nothing but
// combining marks.
std::string NormalizeNfc(std::string_view text);

}  // namespace oscar::engine
