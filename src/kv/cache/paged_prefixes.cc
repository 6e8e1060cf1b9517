// PagedKvCache as a PrefixCache: sequences out of and into the prefix tree, the host's memory, and files.
#include <algorithm>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/kv/cache/paged_kv_cache.h"

namespace oscar::cache {

using pool::PageId;
using pool::PageRef;
using pool::PageTable;
using pool::PagesFor;

// --- Prefixes

PrefixMatch PagedKvCache::Match(std::string_view space, std::span<const int32_t> tokens) const { return prefixes_.Match(space, tokens); }

Result<SequenceId> PagedKvCache::Resume(std::string_view space, std::span<const int32_t> tokens) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, FreeSequence());
  return Occupy(*sequence, prefixes_.Resume(space, tokens));
}

Status PagedKvCache::Publish(SequenceId id, std::string_view space, std::span<const int32_t> tokens, PrefixRetention retention) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetIdle(id));
  if (tokens.size() != static_cast<std::size_t>(sequence->pages->length())) {
    return {StatusCode::kInvalidArgument, "sequence " + std::to_string(id) + " has " + std::to_string(sequence->pages->length()) +
                                              " tokens, published were " + std::to_string(tokens.size())};
  }
  if (sequence->era == era_) prefixes_.Insert(space, tokens, *sequence->pages, retention);
  return {};
}

void PagedKvCache::Clear() {
  prefixes_.Clear();
  ++era_;
}

PrefixStats PagedKvCache::prefix_stats() const { return prefixes_.Stats(); }

bool PagedKvCache::MakeRoom(pool::Reservation::PageCounts needed) {
  const int bf16 = needed.bf16 - bf16_pool_.num_free(), encoded = needed.encoded - encoded_pool_.num_free();
  int freed = 0;
  if (bf16 > 0) freed += prefixes_.EvictBf16(bf16);
  if (encoded > 0) freed += prefixes_.EvictEncoded(encoded);
  // A window that its own sequence still holds frees nothing, but the sequence then need not copy its last page.
  return freed > 0 || (bf16 > 0 && prefixes_.DropLeastUsed());
}

Result<PageRef> PagedKvCache::TakePage(PageKind kind) {
  while (Pool(kind).num_free() == 0 && MakeRoom(kind == PageKind::kBf16 ? pool::Reservation::PageCounts{1, 0} : pool::Reservation::PageCounts{0, 1})) {
  }
  return Pool(kind).Take();
}

// --- Bytes of pages

std::byte* PagedKvCache::PageOfLayer(PageKind kind, int layer, PageId page) const {
  const LayerStorage storage = Storage(layer);
  const auto index = static_cast<std::size_t>(page);
  return kind == PageKind::kBf16 ? storage.bf16_pages + index * storage.bf16_page_stride : storage.encoded_pages + index * storage.encoded_page_stride;
}

Status PagedKvCache::ReadPage(PageKind kind, PageId page, std::span<std::byte> out) const {
  OSCAR_CHECK(out.size() == PageBytes(kind));
  const std::size_t stride = out.size() / static_cast<std::size_t>(config_.shape.num_layers);
  for (int layer = 0; layer < config_.shape.num_layers; ++layer) {
    OSCAR_TRY(verbs_->ReadPage(PageOfLayer(kind, layer, page), out.subspan(static_cast<std::size_t>(layer) * stride, stride)));
  }
  return {};
}

Status PagedKvCache::WritePage(PageKind kind, PageId page, std::span<const std::byte> bytes) {
  OSCAR_CHECK(bytes.size() == PageBytes(kind));
  const std::size_t stride = bytes.size() / static_cast<std::size_t>(config_.shape.num_layers);
  for (int layer = 0; layer < config_.shape.num_layers; ++layer) {
    OSCAR_TRY(verbs_->WritePage(PageOfLayer(kind, layer, page), bytes.subspan(static_cast<std::size_t>(layer) * stride, stride)));
  }
  return {};
}

// --- Parked sequences

class PagedKvCache::ParkedPages final : public ParkedSequence {
 public:
  ParkedPages(PagedKvCache& cache, pool::SequencePages pages, uint64_t era) : cache_(cache), pages_(std::move(pages)), era_(era) {
    cache_.parked_.push_back(this);
  }
  ~ParkedPages() override { std::erase(cache_.parked_, this); }
  int length() const override { return pages_.length(); }
  std::size_t host_bytes() const override { return bytes_.size(); }

  // Copies out every page that nobody else holds and gives it back to its pool.
  Status Leave() {
    bytes_ = base::Buffer();
    owned_.clear();
    for (const PageKind kind : {PageKind::kBf16, PageKind::kEncoded}) {
      for (int index = 0; index < Table(kind).num_entries(); ++index) {
        if (Table(kind).page(index).num_owners() == 1) owned_.push_back({kind, index});
      }
    }
    std::size_t size = 0;
    for (const Owned& page : owned_) size += cache_.PageBytes(page.kind);
    OSCAR_ASSIGN_OR_RETURN(bytes_, base::Buffer::Allocate(size));
    std::size_t start = 0;
    for (const Owned& page : owned_) {
      const std::size_t page_bytes = cache_.PageBytes(page.kind);
      OSCAR_TRY(cache_.ReadPage(page.kind, Table(page.kind).page(page.index).id(), bytes_.bytes().subspan(start, page_bytes)));
      start += page_bytes;
    }
    PageTable bf16 = pages_.bf16().Share(), encoded = pages_.encoded().Share();
    for (const Owned& page : owned_) (page.kind == PageKind::kBf16 ? bf16 : encoded).Place(page.index, PageRef());
    pages_ = pool::SequencePages(pages_.windows(), pages_.length(), std::move(bf16), std::move(encoded));
    return {};
  }

  // The whole sequence again, in new pages where its own were.
  Result<pool::SequencePages> Return() {
    std::vector<PageRef> fresh;
    for (const Owned& page : owned_) {
      OSCAR_ASSIGN_OR_RETURN(PageRef taken, cache_.TakePage(page.kind));
      fresh.push_back(std::move(taken));
    }
    PageTable bf16 = pages_.bf16().Share(), encoded = pages_.encoded().Share();
    std::size_t start = 0;
    for (std::size_t i = 0; i < owned_.size(); ++i) {
      const std::size_t page_bytes = cache_.PageBytes(owned_[i].kind);
      OSCAR_TRY(cache_.WritePage(owned_[i].kind, fresh[i].id(), bytes_.bytes().subspan(start, page_bytes)));
      start += page_bytes;
      (owned_[i].kind == PageKind::kBf16 ? bf16 : encoded).Place(owned_[i].index, std::move(fresh[i]));
    }
    return pool::SequencePages(pages_.windows(), pages_.length(), std::move(bf16), std::move(encoded));
  }
  void Empty() {
    pages_ = pool::SequencePages(pages_.windows());
    bytes_ = base::Buffer();
    owned_.clear();
  }
  pool::SequencePages TakePages() { return std::exchange(pages_, pool::SequencePages(pages_.windows())); }
  uint64_t era() const { return era_; }
  const pool::SequencePages& pages() const { return pages_; }

 private:
  struct Owned {
    PageKind kind;
    int index;
  };
  const PageTable& Table(PageKind kind) const { return kind == PageKind::kBf16 ? pages_.bf16() : pages_.encoded(); }

  PagedKvCache& cache_;
  pool::SequencePages pages_;  // without the pages of `owned_`
  const uint64_t era_;
  std::vector<Owned> owned_;
  base::Buffer bytes_;         // of owned_, in order
};

Result<std::unique_ptr<ParkedSequence>> PagedKvCache::Park(SequenceId id) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetIdle(id));
  auto parked = std::make_unique<ParkedPages>(*this, std::move(*sequence->pages), sequence->era);
  sequence->pages.emplace(plan_.windows);
  if (Status status = parked->Leave(); !status.ok()) {
    sequence->pages = parked->TakePages();
    return status;
  }
  OSCAR_TRY(Release(id));
  return std::unique_ptr<ParkedSequence>(std::move(parked));
}

Result<SequenceId> PagedKvCache::Unpark(ParkedSequence& parked) {
  auto& pages = static_cast<ParkedPages&>(parked);
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, FreeSequence());
  OSCAR_ASSIGN_OR_RETURN(pool::SequencePages whole, pages.Return());
  const SequenceId id = Occupy(*sequence, std::move(whole));
  sequence->era = pages.era();
  pages.Empty();
  return id;
}

// --- Files

KvFileKey PagedKvCache::FileKey(std::string_view identity) const {
  base::Sha256 hash;
  const auto add = [&](std::string_view text) { hash.Update(std::to_string(text.size()) + ":" + std::string(text)); };
  add(identity);
  add(method_.name());
  add({reinterpret_cast<const char*>(profile_.digest().data()), profile_.digest().size()});
  add(verbs_->page_layout());
  for (const int number : {config_.sink, config_.recent, config_.shape.num_layers, config_.shape.num_query_heads, config_.shape.num_kv_heads,
                           config_.shape.head_dim}) {
    add(std::to_string(number));
  }
  return {hash.Finish(), plan_.bf16_page_bytes, plan_.encoded_page_bytes};
}

namespace {

bool IsEncodedPage(int index, int length, const pool::TierWindows& windows) {
  return pool::IsEncoded(index * kPageTokens, length, windows.sink, windows.recent, windows.unit_tokens);
}

// What a KV file of these points holds, each page once.
struct SavedPages {
  SavedPages(const std::vector<pool::PrefixTree::Point>& points, const pool::TierWindows& windows) {
    std::map<PageId, uint32_t> numbers[2];
    for (const pool::PrefixTree::Point& point : points) {
      KvFilePoint& entry = contents.points.emplace_back(KvFilePoint{point.space, point.retention, point.tokens, {}});
      const int length = point.pages.length();
      for (int index = 0; index < PagesFor(length); ++index) {
        const bool encoded = IsEncodedPage(index, length, windows);
        const PageId id = (encoded ? point.pages.encoded() : point.pages.bf16()).page(index).id();
        OSCAR_CHECK(id != PageId::kNone);
        const auto [place, is_new] = numbers[encoded].try_emplace(id, static_cast<uint32_t>(pages[encoded].size()));
        if (is_new) pages[encoded].push_back(id);
        entry.pages.push_back(place->second);
      }
    }
    contents.num_bf16_pages = static_cast<uint32_t>(pages[0].size());
    contents.num_encoded_pages = static_cast<uint32_t>(pages[1].size());
  }

  KvFileContents contents;
  std::vector<PageId> pages[2];  // BF16, encoded: by their number in the file
};

class CopiedPrefixes final : public PrefixCopy {
 public:
  CopiedPrefixes(KvFileKey key, KvFileContents contents) : key_(std::move(key)), contents_(std::move(contents)) {}
  Status Allocate() {
    OSCAR_ASSIGN_OR_RETURN(bytes_, base::Buffer::Allocate(contents_.num_bf16_pages * key_.bf16_page_bytes + contents_.num_encoded_pages * key_.encoded_page_bytes));
    return {};
  }
  std::span<std::byte> Page(bool encoded, uint32_t number) const {
    const std::size_t size = encoded ? key_.encoded_page_bytes : key_.bf16_page_bytes;
    const std::size_t first = encoded ? contents_.num_bf16_pages * key_.bf16_page_bytes : 0;
    return bytes_.bytes().subspan(first + number * size, size);
  }
  int resume_points() const override { return static_cast<int>(contents_.points.size()); }
  std::size_t bytes() const override { return bytes_.size(); }
  Status Save(const std::filesystem::path& path) const override {
    return WriteKvFile(path, key_, contents_, [this](bool encoded, uint32_t number, std::span<std::byte> out) {
      std::ranges::copy(Page(encoded, number), out.begin());
      return Status();
    });
  }

 private:
  const KvFileKey key_;
  const KvFileContents contents_;
  base::Buffer bytes_;
};

}  // namespace

Status PagedKvCache::Save(const std::filesystem::path& path, std::string_view identity) const {
  // The points hold handles, so that the pages stay as they are until they are written.
  const std::vector<pool::PrefixTree::Point> points = prefixes_.Points();
  const SavedPages saved(points, plan_.windows);
  return WriteKvFile(path, FileKey(identity), saved.contents, [&](bool encoded, uint32_t number, std::span<std::byte> out) {
    return ReadPage(encoded ? PageKind::kEncoded : PageKind::kBf16, saved.pages[encoded][number], out);
  });
}

Result<std::unique_ptr<PrefixCopy>> PagedKvCache::Copy(std::string_view identity) const {
  const std::vector<pool::PrefixTree::Point> points = prefixes_.Points();
  SavedPages saved(points, plan_.windows);
  auto copy = std::make_unique<CopiedPrefixes>(FileKey(identity), std::move(saved.contents));
  OSCAR_TRY(copy->Allocate());
  for (const bool encoded : {false, true}) {
    for (uint32_t number = 0; number < saved.pages[encoded].size(); ++number) {
      OSCAR_TRY(ReadPage(encoded ? PageKind::kEncoded : PageKind::kBf16, saved.pages[encoded][number], copy->Page(encoded, number)));
    }
  }
  return std::unique_ptr<PrefixCopy>(std::move(copy));
}

Result<int> PagedKvCache::Restore(const std::filesystem::path& path, std::string_view identity) {
  OSCAR_ASSIGN_OR_RETURN(const KvFile file, KvFile::Open(path, FileKey(identity)));
  const KvFileContents& contents = file.contents();
  const auto corrupt = [&](const char* text) { return Status(StatusCode::kCorruptData, path.string() + ": " + text); };
  for (const KvFilePoint& point : contents.points) {  // all, before anything is loaded
    const int length = static_cast<int>(point.tokens.size());
    for (int index = 0; index < PagesFor(length); ++index) {
      const bool encoded = IsEncodedPage(index, length, plan_.windows);
      if (point.pages[static_cast<std::size_t>(index)] >= (encoded ? contents.num_encoded_pages : contents.num_bf16_pages)) {
        return corrupt("a sequence names a page that is not there");
      }
    }
  }
  std::map<uint32_t, PageRef> loaded[2];  // BF16, encoded
  std::vector<std::pair<const KvFilePoint*, pool::SequencePages>> sequences;
  for (const KvFilePoint& point : contents.points) {
    const int length = static_cast<int>(point.tokens.size());
    std::vector<uint32_t> missing[2];
    for (int index = 0; index < PagesFor(length); ++index) {
      const bool encoded = IsEncodedPage(index, length, plan_.windows);
      const uint32_t number = point.pages[static_cast<std::size_t>(index)];
      if (!loaded[encoded].contains(number)) missing[encoded].push_back(number);
    }
    if (static_cast<int>(missing[0].size()) > bf16_pool_.num_free() || static_cast<int>(missing[1].size()) > encoded_pool_.num_free()) continue;
    for (const bool encoded : {false, true}) {
      const PageKind kind = encoded ? PageKind::kEncoded : PageKind::kBf16;
      for (const uint32_t number : missing[encoded]) {
        if (loaded[encoded].contains(number)) continue;  // named twice by one sequence
        OSCAR_ASSIGN_OR_RETURN(PageRef page, Pool(kind).Take());
        OSCAR_TRY(WritePage(kind, page.id(), file.page(encoded, number)));
        loaded[encoded].emplace(number, std::move(page));
      }
    }
    PageTable tables[2];
    for (PageTable& table : tables) table.Resize(PagesFor(length));
    for (int index = 0; index < PagesFor(length); ++index) {
      const bool encoded = IsEncodedPage(index, length, plan_.windows);
      tables[encoded].Place(index, loaded[encoded].at(point.pages[static_cast<std::size_t>(index)]).Share());
    }
    sequences.emplace_back(&point, pool::SequencePages(plan_.windows, length, std::move(tables[0]), std::move(tables[1])));
  }
  // The most recently used last, as it was.
  for (auto at = sequences.rbegin(); at != sequences.rend(); ++at) prefixes_.Insert(at->first->space, at->first->tokens, at->second, at->first->retention);
  return static_cast<int>(sequences.size());
}

// --- Snapshot

pool::CacheSnapshot PagedKvCache::Snapshot() const {
  pool::CacheSnapshot snapshot = {plan_.windows, bf16_pool_.Snapshot(), encoded_pool_.Snapshot(), {}, {}, {}};
  for (const auto& sequence : sequences_) {
    if (!sequence->pages) continue;
    pool::SequenceSnapshot description;
    description.id = sequence->id;
    description.length = sequence->pages->length();
    const auto bf16 = sequence->pages->bf16().entries(), encoded = sequence->pages->encoded().entries();
    description.bf16_table.assign(bf16.begin(), bf16.end());
    description.encoded_table.assign(encoded.begin(), encoded.end());
    if (sequence->step) {
      description.step_tokens = sequence->step->num_tokens();
      description.replaced_page = pool::TableEntry(sequence->step->replaced_page());
    }
    snapshot.sequences.push_back(std::move(description));
  }
  prefixes_.AppendHandles(snapshot.prefix_bf16, snapshot.prefix_encoded);
  for (const ParkedPages* parked : parked_) {
    for (const int32_t page : parked->pages().bf16().entries()) snapshot.prefix_bf16.push_back(page);
    for (const int32_t page : parked->pages().encoded().entries()) snapshot.prefix_encoded.push_back(page);
  }
  return snapshot;
}

}  // namespace oscar::cache
