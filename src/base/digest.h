// SHA-256 through OpenSSL: model files, profiles, prefix keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "oscar/result.h"

namespace oscar::base {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text);
  Sha256Digest Finish();  // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string HexFromDigest(const Sha256Digest& digest);  // 64 lower-case digits
// Reads the whole file. `progress`, if given, gets the bytes done so far.
Result<Sha256Digest> Sha256OfFile(const std::filesystem::path& path,
                                  const std::function<void(uint64_t bytes_done)>& progress = {});

}  // namespace oscar::base
