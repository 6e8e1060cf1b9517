#include "src/kv/cache/kv_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/io/atomic_file.h"
#include "src/kv/pool/tier_rule.h"

namespace oscar::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "KV files are little endian");

constexpr std::array<char, 8> kMagic = {'O', 'S', 'C', 'A', 'R', 'K', 'V', '\n'};
constexpr uint32_t kVersion = 1;
constexpr std::size_t kDigestBytes = std::tuple_size_v<base::Sha256Digest>;

class HeadWriter {
 public:
  void Bytes(const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  template <class Number>
  void Put(Number value) {
    Bytes(&value, sizeof(value));
  }
  std::vector<std::byte> bytes_;
};

// Takes from the front of a span that is trusted in nothing but its size.
class HeadReader {
 public:
  HeadReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class Number>
  Status Take(Number* value) {
    return TakeBytes(value, sizeof(*value));
  }
  Status TakeBytes(void* to, std::size_t size) {
    if (size > rest_.size()) return {StatusCode::kCorruptData, "the file ends in its head"};
    if (size > 0) std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return {};
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

std::vector<std::byte> Head(const KvFileKey& key, const KvFileContents& contents) {
  HeadWriter head;
  head.Bytes(kMagic.data(), kMagic.size());
  head.Put(kVersion);
  head.Bytes(key.digest.data(), key.digest.size());
  head.Put(static_cast<uint64_t>(key.bf16_page_bytes));
  head.Put(static_cast<uint64_t>(key.encoded_page_bytes));
  head.Put(contents.num_bf16_pages);
  head.Put(contents.num_encoded_pages);
  head.Put(static_cast<uint32_t>(contents.points.size()));
  for (const KvFilePoint& point : contents.points) {
    head.Put(static_cast<uint32_t>(point.space.size()));
    head.Bytes(point.space.data(), point.space.size());
    head.Put(static_cast<uint8_t>(point.retention));
    head.Put(static_cast<uint32_t>(point.tokens.size()));
    head.Bytes(point.tokens.data(), point.tokens.size() * sizeof(int32_t));
    head.Bytes(point.pages.data(), point.pages.size() * sizeof(uint32_t));
  }
  return std::move(head.bytes_);
}

Status ReadPoint(HeadReader& reader, KvFilePoint* point) {
  uint32_t space_bytes = 0, num_tokens = 0;
  uint8_t retention = 0;
  OSCAR_TRY(reader.Take(&space_bytes));
  if (space_bytes > reader.left()) return {StatusCode::kCorruptData, "a name is longer than the file"};
  point->space.resize(space_bytes);
  OSCAR_TRY(reader.TakeBytes(point->space.data(), space_bytes));
  OSCAR_TRY(reader.Take(&retention));
  OSCAR_TRY(reader.Take(&num_tokens));
  if (retention > static_cast<uint8_t>(PrefixRetention::kNormal)) return {StatusCode::kCorruptData, "an unknown retention"};
  if (num_tokens > static_cast<uint32_t>(pool::kMaxSequenceTokens) || num_tokens > reader.left() / sizeof(int32_t)) {
    return {StatusCode::kCorruptData, "a sequence is longer than the file"};
  }
  point->retention = static_cast<PrefixRetention>(retention);
  point->tokens.resize(num_tokens);
  OSCAR_TRY(reader.TakeBytes(point->tokens.data(), num_tokens * sizeof(int32_t)));
  point->pages.resize(static_cast<std::size_t>(pool::PagesFor(static_cast<int>(num_tokens))));
  return reader.TakeBytes(point->pages.data(), point->pages.size() * sizeof(uint32_t));
}

}  // namespace

Status WriteKvFile(const std::filesystem::path& path, const KvFileKey& key, const KvFileContents& contents, const ReadKvPage& read) {
  enum class Part { kHead, kPages, kDigest, kEnd } part = Part::kHead;
  std::vector<std::byte> bytes = Head(key, contents);
  base::Sha256 hash;
  uint64_t page = 0;
  const uint64_t num_pages = uint64_t{contents.num_bf16_pages} + contents.num_encoded_pages;
  return io::WriteFileAtomically(path, [&]() -> Result<std::span<const std::byte>> {
    switch (part) {
      case Part::kHead: part = num_pages > 0 ? Part::kPages : Part::kDigest; break;
      case Part::kPages: {
        const bool encoded = page >= contents.num_bf16_pages;
        bytes.resize(encoded ? key.encoded_page_bytes : key.bf16_page_bytes);
        OSCAR_TRY(read(encoded, static_cast<uint32_t>(encoded ? page - contents.num_bf16_pages : page), bytes));
        if (++page == num_pages) part = Part::kDigest;
        break;
      }
      case Part::kDigest: {
        const base::Sha256Digest digest = hash.Finish();
        bytes.resize(digest.size());
        std::memcpy(bytes.data(), digest.data(), digest.size());
        part = Part::kEnd;
        return std::span<const std::byte>(bytes);
      }
      case Part::kEnd: return std::span<const std::byte>();
    }
    hash.Update(bytes);
    return std::span<const std::byte>(bytes);
  });
}

Result<KvFile> KvFile::Open(const std::filesystem::path& path, const KvFileKey& key) {
  OSCAR_ASSIGN_OR_RETURN(io::MappedFile file, io::MappedFile::Open(path));
  KvFile opened(std::move(file), key);
  OSCAR_TRY(opened.Parse().WithContext(path.string()));
  return opened;
}

Status KvFile::Parse() {
  const std::span<const std::byte> all = file_.bytes();
  const auto corrupt = [](const char* text) { return Status(StatusCode::kCorruptData, text); };
  if (all.size() < kMagic.size() + sizeof(kVersion) + kDigestBytes || std::memcmp(all.data(), kMagic.data(), kMagic.size()) != 0) {
    return corrupt("no KV file");
  }
  const std::span<const std::byte> body = all.first(all.size() - kDigestBytes);
  base::Sha256 hash;
  hash.Update(body);
  if (const base::Sha256Digest digest = hash.Finish(); std::memcmp(digest.data(), all.data() + body.size(), kDigestBytes) != 0) {
    return corrupt("the checksum is wrong: the file was changed or cut short");
  }
  HeadReader reader(body.subspan(kMagic.size()));
  uint32_t version = 0, num_points = 0;
  uint64_t bf16_page_bytes = 0, encoded_page_bytes = 0;
  base::Sha256Digest digest{};
  OSCAR_TRY(reader.Take(&version));
  if (version != kVersion) return {StatusCode::kFailedPrecondition, "KV file format " + std::to_string(version) + ", this is " + std::to_string(kVersion)};
  OSCAR_TRY(reader.TakeBytes(digest.data(), digest.size()));
  OSCAR_TRY(reader.Take(&bf16_page_bytes));
  OSCAR_TRY(reader.Take(&encoded_page_bytes));
  if (digest != key_.digest || bf16_page_bytes != key_.bf16_page_bytes || encoded_page_bytes != key_.encoded_page_bytes) {
    return {StatusCode::kFailedPrecondition, "made for another model, KV method, profile or windows"};
  }
  OSCAR_TRY(reader.Take(&contents_.num_bf16_pages));
  OSCAR_TRY(reader.Take(&contents_.num_encoded_pages));
  OSCAR_TRY(reader.Take(&num_points));
  for (uint32_t i = 0; i < num_points; ++i) OSCAR_TRY(ReadPoint(reader, &contents_.points.emplace_back()));
  // Divisions, so that no product can overflow.
  uint64_t left = reader.left();
  for (const auto& [count, bytes] : {std::pair(contents_.num_bf16_pages, bf16_page_bytes), std::pair(contents_.num_encoded_pages, encoded_page_bytes)}) {
    if (count > 0 && (bytes == 0 || count > left / bytes)) return corrupt("the pages are not all there");
    left -= count * bytes;
  }
  if (left != 0) return corrupt("bytes behind the pages");
  first_page_ = body.size() - reader.left();
  return {};
}

std::span<const std::byte> KvFile::page(bool encoded, uint32_t number) const {
  OSCAR_CHECK(number < (encoded ? contents_.num_encoded_pages : contents_.num_bf16_pages));
  const std::size_t start = encoded ? contents_.num_bf16_pages * key_.bf16_page_bytes + number * key_.encoded_page_bytes
                                    : number * key_.bf16_page_bytes;
  return file_.bytes().subspan(first_page_ + start, encoded ? key_.encoded_page_bytes : key_.bf16_page_bytes);
}

}  // namespace oscar::cache
