// Any bytes: a Status, or a profile that is written and read back to the same digest. The content digest would stop
// nearly every mutation at the door, so that the bytes are also tried with a digest that fits.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/check.h"
#include "src/io/safetensors.h"
#include "src/kv/profile/profile_file.h"

namespace {

void ReadAndWriteBack(std::span<const std::byte> bytes) {
  const auto profile = oscar::ParseProfile(bytes);
  if (!profile.ok()) {
    OSCAR_CHECK(!profile.status().message().empty());
    return;
  }
  const auto again = oscar::ParseProfile(oscar::SerializeProfile(*profile));
  OSCAR_CHECK_MSG(again.ok(), again.status().message());
  OSCAR_CHECK(again->digest() == profile->digest());
}

// The same content with a fitting content_sha256.
std::vector<std::byte> Resealed(const oscar::io::SafetensorsFile& file) {
  oscar::io::SafetensorsWriter writer;
  for (const auto& [key, value] : file.metadata()) writer.SetMetadata(key, value);
  writer.SetMetadata("content_sha256", oscar::ContentDigest(file));
  for (const auto& tensor : file.tensors()) {
    if (!writer.Add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes).ok()) return {};
  }
  return writer.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  ReadAndWriteBack(bytes);
  if (const auto file = oscar::io::SafetensorsFile::Parse(bytes); file.ok()) ReadAndWriteBack(Resealed(*file));
  return 0;
}
