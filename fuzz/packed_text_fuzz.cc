// Packed texts on arbitrary bytes: a Status or a text within its limit, for each of the three layers.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/base/check.h"
#include "src/io/packed_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMost = 1 << 16;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto decoded = oscar::io::DecodeBase64(bytes);
  if (decoded.ok()) OSCAR_CHECK(decoded->size() <= size);
  const auto content = oscar::io::Inflate(bytes, kMost);
  if (content.ok()) OSCAR_CHECK(content->size() <= kMost);
  const auto text = oscar::io::ReadPickledText(bytes);
  if (text.ok()) OSCAR_CHECK(text->size() <= size);
  const auto unpacked = oscar::io::UnpackText(bytes, kMost);
  OSCAR_CHECK(unpacked.ok() || !unpacked.status().message().empty());
  return 0;
}
