#include "src/engine/serve/kv_event_encoder.h"

#include <algorithm>
#include <cstddef>

#include "oscar/types.h"
#include "src/engine/serve/msgpack_text.h"

namespace oscar::engine {
namespace {

constexpr std::string_view kMedium = "GPU";  // of the pages that requests run on, on a CPU too: routers take this name as resident

uint64_t HashOf(const base::Sha256Digest& digest) {
  uint64_t hash = 0;
  for (int i = 0; i < 8; ++i) hash = hash << 8 | digest[static_cast<size_t>(i)];
  return hash & ~(uint64_t{1} << 63);
}

std::span<const std::byte> BytesOf(const base::Sha256Digest& digest) { return std::as_bytes(std::span(digest)); }

}  // namespace

std::string_view KvEventEncoder::SaltOf(std::string_view space) const {
  return spaces_have_tenants_ ? space.substr(std::min(space.find('\n'), space.size() - 1) + 1) : space;
}

std::vector<uint64_t> KvEventEncoder::Hashes(std::string_view space, std::span<const int32_t> tokens) const {
  base::Sha256 root;
  root.Update("oscar kv events 1\n" + key_ + "\n");
  root.Update(space);
  base::Sha256Digest digest = root.Finish();
  std::vector<uint64_t> hashes;
  for (size_t begin = 0; begin + kPageTokens <= tokens.size(); begin += kPageTokens) {
    std::array<uint8_t, 4 * kPageTokens> page;
    for (size_t i = 0; i < kPageTokens; ++i) {
      const auto token = static_cast<uint32_t>(tokens[begin + i]);
      for (size_t byte = 0; byte < 4; ++byte) page[4 * i + byte] = static_cast<uint8_t>(token >> (8 * byte));
    }
    base::Sha256 hash;
    hash.Update(BytesOf(digest));
    hash.Update(std::as_bytes(std::span(page)));
    digest = hash.Finish();
    hashes.push_back(HashOf(digest));
  }
  return hashes;
}

// ["BlockStored", hashes, hash before the first or nil, tokens, tokens of a page, nil, medium, adapter, extra keys]; the last two are left out
// without a salt.
std::string KvEventEncoder::Stored(std::string_view space, std::span<const int32_t> tokens, int first_page) const {
  const std::vector<uint64_t> hashes = Hashes(space, tokens);
  const auto first = static_cast<size_t>(first_page);
  const std::string_view salt = SaltOf(space);
  MsgpackText event;
  event.Array(salt.empty() ? 7 : 9);
  event.Text("BlockStored");
  event.Array(hashes.size() - first);
  for (size_t page = first; page < hashes.size(); ++page) event.Unsigned(hashes[page]);
  first == 0 ? event.Nil() : event.Unsigned(hashes[first - 1]);
  const std::span<const int32_t> own = tokens.subspan(first * kPageTokens);
  event.Array(own.size());
  for (const int32_t token : own) event.Unsigned(static_cast<uint64_t>(token));
  event.Unsigned(kPageTokens);
  event.Nil();
  event.Text(kMedium);
  if (salt.empty()) return event.text();
  event.Nil();
  event.Array(hashes.size() - first);
  for (size_t page = first; page < hashes.size(); ++page) {
    if (page > 0) {
      event.Nil();
      continue;
    }
    event.Array(1);
    event.Text(salt);
  }
  return event.text();
}

std::string KvEventEncoder::Removed(std::string_view space, std::span<const int32_t> tokens, int first_page) const {
  const std::vector<uint64_t> hashes = Hashes(space, tokens);
  MsgpackText event;
  event.Array(3);
  event.Text("BlockRemoved");
  event.Array(hashes.size() - static_cast<size_t>(first_page));
  for (size_t page = static_cast<size_t>(first_page); page < hashes.size(); ++page) event.Unsigned(hashes[page]);
  event.Text(kMedium);
  return event.text();
}

std::string KvEventEncoder::Cleared() {
  MsgpackText event;
  event.Array(1);
  event.Text("AllBlocksCleared");
  return event.text();
}

std::string KvEventEncoder::Batch(double seconds, std::span<const std::string> events) {
  MsgpackText batch;
  batch.Array(3);
  batch.Double(seconds);
  batch.Array(events.size());
  for (const std::string& event : events) batch.Made(event);
  batch.Unsigned(0);
  return batch.text();
}

}  // namespace oscar::engine
