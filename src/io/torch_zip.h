// TorchZip: the archive of a PyTorch file (.pt), a zip whose entries are stored uncompressed under one root folder (method.md 7.1).
// Reads the central directory of files that may be hostile; writes the byte layout of torch.save.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/result.h"

namespace oscar::io {

class TorchZip {
 public:
  // The views point into `bytes`. kCorruptData for anything but a whole archive: truncated or trailing bytes, sizes that do not
  // fit, a wrong CRC, two entries of one name or entries outside the root folder; kUnsupported for compressed or encrypted
  // entries, or storages that are not little-endian.
  static Result<TorchZip> Parse(std::span<const std::byte> bytes);

  // Content of "<root>/<name>". kNotFound naming it.
  Result<std::span<const std::byte>> Entry(std::string_view name) const;
  const std::string& root() const { return root_; }

 private:
  std::string root_;
  std::vector<std::pair<std::string, std::span<const std::byte>>> entries_;  // names without the root
};

// Bytes of an archive with these entries, names without the root, in this order.
std::vector<std::byte> WriteTorchZip(const std::string& root, const std::vector<std::pair<std::string, std::vector<std::byte>>>& entries);

}  // namespace oscar::io
