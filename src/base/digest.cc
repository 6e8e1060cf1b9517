#include "src/base/digest.h"

#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "src/base/check.h"

namespace oscar::base {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  OSCAR_CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  OSCAR_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}
void Sha256::Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned size = 0;
  OSCAR_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1 && size == digest.size());
  return digest;
}

std::string HexFromDigest(const Sha256Digest& digest) {
  std::string hex;
  for (uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

Result<Sha256Digest> Sha256OfFile(const std::filesystem::path& path,
                                  const std::function<void(uint64_t)>& progress) {
  const auto fail = [&] {
    return Status(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kIoError,
                  path.string() + ": " + std::strerror(errno));
  };
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return fail();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> closer(file, std::fclose);
  Sha256 sha;
  std::vector<std::byte> block(1 << 20);
  uint64_t done = 0;
  while (const size_t n = std::fread(block.data(), 1, block.size(), file)) {
    sha.Update(std::span(block).first(n));
    done += n;
    if (progress) progress(done);
  }
  if (std::ferror(file)) return fail();
  return sha.Finish();
}

}  // namespace oscar::base
