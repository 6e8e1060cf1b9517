// Text as some published data sets pack it: base64 of a zlib stream of a pickle that holds one text. Read without an unpickler, so
// that nothing is ever executed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "oscar/result.h"

namespace oscar::io {

// Bytes of standard base64 with or without padding; white space is left out. kCorruptData naming the offset of anything else.
Result<std::string> DecodeBase64(std::string_view text);

// The content of one whole zlib stream. kCorruptData when it is damaged, truncated, or followed by other bytes; kResourceExhausted
// above max_bytes.
Result<std::string> Inflate(std::string_view stream, size_t max_bytes);

// The one text of a pickle of protocol 1 to 5. kCorruptData when it is truncated, kUnsupported for any opcode but those of a text,
// naming the offset.
Result<std::string> ReadPickledText(std::string_view pickle);

// All three.
Result<std::string> UnpackText(std::string_view packed, size_t max_bytes);

}  // namespace oscar::io
