// Any bytes: a Status or a file whose tensors lie inside the data section and cover it.

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/check.h"
#include "src/io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = oscar::io::SafetensorsFile::Parse(std::as_bytes(std::span(data, size)));
  if (!file.ok()) {
    OSCAR_CHECK(!file.status().message().empty());
    return 0;
  }
  size_t covered = 0;
  unsigned sum = 0;
  for (const auto& tensor : file->tensors()) {
    covered += tensor.bytes.size();
    for (const std::byte byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);
    OSCAR_CHECK(file->Find(tensor.name) == &tensor);
  }
  OSCAR_CHECK(covered == file->data_section().size());
  return sum == 0xFFFFFFFF ? -1 : 0;  // keeps the reads
}
