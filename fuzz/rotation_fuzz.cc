// Any bytes: a Status, or a rotation file that is written and read back with the same tensors. A CRC would stop nearly every
// mutation at the door, so that the bytes are also tried as the pickle of an archive with one storage.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "oscar/rotation_file.h"
#include "src/base/check.h"
#include "src/io/pickle_tensors.h"
#include "src/io/torch_zip.h"

namespace {

void ReadAndWriteBack(std::span<const std::byte> bytes) {
  const auto file = oscar::RotationFile::Parse(bytes);
  if (!file.ok()) {
    OSCAR_CHECK(!file.status().message().empty());
    return;
  }
  const auto again = oscar::RotationFile::Parse(file->Serialize("again"));
  OSCAR_CHECK_MSG(again.ok(), again.status().message());
  OSCAR_CHECK(again->layers.size() == file->layers.size());
  for (size_t i = 0; i < file->layers.size(); ++i) OSCAR_CHECK(again->layers[i].rotation == file->layers[i].rotation);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  ReadAndWriteBack(bytes);
  (void)oscar::io::ParsePickle(bytes).ok();
  const float identity[] = {1, 0, 0, 1};
  const auto storage = std::as_bytes(std::span(identity));
  ReadAndWriteBack(oscar::io::WriteTorchZip(
      "r", {{"data.pkl", {bytes.begin(), bytes.end()}}, {"data/0", {storage.begin(), storage.end()}}}));
  return 0;
}
