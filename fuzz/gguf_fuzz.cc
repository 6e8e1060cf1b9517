// The GGUF reader on arbitrary bytes: a Status or a file whose directory can be walked, never more.

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/base/check.h"
#include "src/io/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = oscar::io::GgufFile::Parse(std::as_bytes(std::span(data, size)));
  if (!file.ok()) {
    OSCAR_CHECK(!file.status().message().empty());
    return 0;
  }
  for (const oscar::io::GgufTensor& tensor : file->tensors()) {
    OSCAR_CHECK(file->FindTensor(tensor.name) == &tensor);
    OSCAR_CHECK(tensor.num_elements() >= 1);
    const auto bytes = file->TensorBytes(tensor, static_cast<uint64_t>(tensor.num_elements()));
    unsigned sum = 0;
    if (bytes.ok()) sum = static_cast<unsigned>(bytes->front()) + static_cast<unsigned>(bytes->back());
    OSCAR_CHECK(sum <= 510);
  }
  for (const auto& [key, value] : file->metadata().entries()) OSCAR_CHECK(file->metadata().Find(key) == &value);
  return 0;
}
