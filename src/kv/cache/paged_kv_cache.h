// PagedKvCache: the KvCache of oscar/kv_cache.h. It joins three things and owns no rule itself: which pages a sequence
// has (src/kv/pool), the bytes behind them (two buffers), and the verbs that fill and read them (KvVerbs).
//
// Memory: [layer][page id][kv_head][...] (kernels.h, LayerStorage), for BF16 pages and for encoded pages; a page id
// names the page of every layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "oscar/kv_cache.h"
#include "oscar/prefix_cache.h"
#include "src/base/buffer.h"
#include "src/kv/cache/kv_file.h"
#include "src/kv/cache/kv_verbs.h"
#include "src/kv/pool/capacity_plan.h"
#include "src/kv/pool/page_pool.h"
#include "src/kv/pool/prefix_tree.h"
#include "src/kv/pool/reservation.h"
#include "src/kv/pool/sequence_pages.h"
#include "src/kv/pool/snapshot.h"

namespace oscar::cache {

class PagedKvCache final : public KvCache, public PrefixCache {
 public:
  // As KvCache::Create, over the given verbs.
  static Result<std::unique_ptr<PagedKvCache>> Create(const KvMethod& method, CodecProfile profile,
                                                      const KvCacheConfig& config, Executor& executor,
                                                      std::unique_ptr<KvVerbs> verbs);

  Result<SequenceId> NewSequence() override;
  Result<SequenceId> Fork(SequenceId sequence) override;
  Result<int> Truncate(SequenceId sequence, int length) override;
  Status Release(SequenceId sequence) override;

  int length(SequenceId sequence) const override;
  SegmentTokens segments(SequenceId sequence) const override;

  Status Reserve(SequenceId sequence, int num_tokens) override;
  Status Append(SequenceId sequence, int layer, RowsView<const float> keys, RowsView<const float> values) override;
  Status Attend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries,
                RowsView<float> out) override;
  Result<uint64_t> PrepareRecordedStep(std::span<const SequenceId> sequences) override;
  Status AttendRecorded(int layer, float scale, const RecordedRows& rows, RowsView<float> out) override;
  Status NoteReplay() override;
  Status Commit(SequenceId sequence, int num_tokens) override;
  void Abandon(SequenceId sequence) override;

  PrefixCache* prefixes() override { return this; }
  PrefixMatch Match(std::string_view space, std::span<const int32_t> tokens) const override;
  Result<SequenceId> Resume(std::string_view space, std::span<const int32_t> tokens) override;
  Status Publish(SequenceId sequence, std::string_view space, std::span<const int32_t> tokens, PrefixRetention retention) override;
  void Clear() override;
  PrefixStats prefix_stats() const override;
  void Observe(PrefixObserver* observer) override { prefixes_.Observe(observer); }
  Result<std::unique_ptr<ParkedSequence>> Park(SequenceId sequence) override;
  Result<SequenceId> Unpark(ParkedSequence& parked) override;
  Status Save(const std::filesystem::path& path, std::string_view identity) const override;
  Result<std::unique_ptr<PrefixCopy>> Copy(std::string_view identity) const override;
  Result<int> Restore(const std::filesystem::path& path, std::string_view identity) override;

  KvCacheStats stats() const override;
  const KvMethod& method() const override { return method_; }
  const CodecProfile& profile() const override { return profile_; }
  const KvCacheConfig& config() const override { return config_; }
  Status ReadEncodedPage(SequenceId sequence, int layer, int page_index, std::span<std::byte> out) const override;

  // For ValidateInvariants.
  pool::CacheSnapshot Snapshot() const;

 private:
  static constexpr SequenceId kNoSequence = -1;
  // Stays in place for the life of the cache: reservations point into it.
  struct Sequence {
    SequenceId id = kNoSequence;  // kNoSequence while none lives here
    SequenceId next_id = 0;       // of the next one to live here
    std::optional<pool::SequencePages> pages;
    std::optional<pool::Reservation> step;  // behind `pages`, so that it is undone first
    std::vector<uint8_t> layer_appended;    // [num_layers] of the step in flight
    bool is_demoted_ahead = false;          // what the step in flight encodes, in all layers
    uint64_t era = 0;                       // clears before it began
  };
  class ParkedPages;
  enum class PageKind : uint8_t { kBf16, kEncoded };

  struct Parts {
    KvMethod method;
    CodecProfile profile;
    KvCacheConfig config;
    Executor* executor;
    std::unique_ptr<KvVerbs> verbs;
    pool::CapacityPlan plan;
    PageMemory bf16_bytes, encoded_bytes;
  };
  explicit PagedKvCache(Parts parts);

  Status CheckVerbs();
  void ListDemotions(const Sequence& sequence);  // into demote_pages_
  Status DemoteAhead(Sequence& sequence);
  const Sequence* Find(SequenceId id) const;  // null when no such sequence lives
  Result<Sequence*> Get(SequenceId id);       // kNotFound instead
  Result<Sequence*> GetIdle(SequenceId id);   // kFailedPrecondition while a step is in flight
  Result<Sequence*> GetInStep(SequenceId id, int layer);
  Result<Sequence*> FreeSequence();  // a place for a new one; kResourceExhausted when max_sequences are alive
  SequenceId Occupy(Sequence& place, pool::SequencePages pages);
  Status CheckRows(const char* name, const RowsView<const float>& rows, int num_tokens, int num_heads) const;
  // What the verb is given, checked; its sequences stand in attend_sequences_.
  Result<AttendParams> ParamsOfAttend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries,
                                      RowsView<float> out);
  LayerStorage Storage(int layer) const;
  void CopyBf16Page(pool::PageId from, pool::PageId to);
  // A page of all layers, one layer after the other.
  std::size_t PageBytes(PageKind kind) const { return kind == PageKind::kBf16 ? plan_.bf16_page_bytes : plan_.encoded_page_bytes; }
  std::byte* PageOfLayer(PageKind kind, int layer, pool::PageId page) const;
  Status ReadPage(PageKind kind, pool::PageId page, std::span<std::byte> out) const;
  Status WritePage(PageKind kind, pool::PageId page, std::span<const std::byte> bytes);
  pool::PagePool& Pool(PageKind kind) { return kind == PageKind::kBf16 ? bf16_pool_ : encoded_pool_; }
  // A free page, after prefixes gave one up if they must.
  Result<pool::PageRef> TakePage(PageKind kind);
  // Prefixes give up pages until so many are free, as far as they have any to give; whether they gave one.
  bool MakeRoom(pool::Reservation::PageCounts needed);
  KvFileKey FileKey(std::string_view identity) const;
  Status GrowWorkspace(std::size_t bytes);

  const KvMethod method_;
  const CodecProfile profile_;
  const KvCacheConfig config_;
  const std::unique_ptr<KvVerbs> verbs_;
  const pool::CapacityPlan plan_;
  const std::vector<float> page_phases_;  // in front of context_, which points to it
  const KernelContext context_;
  PageMemory bf16_bytes_, encoded_bytes_;
  base::Buffer workspace_;
  pool::PagePool bf16_pool_, encoded_pool_;
  pool::PrefixTree prefixes_;
  uint64_t era_ = 0;  // clears so far
  std::vector<const ParkedPages*> parked_;
  std::vector<std::unique_ptr<Sequence>>
      sequences_;                                 // at most config_.max_sequences; behind the pools they hold pages of
  std::vector<AttendSequence> attend_sequences_;  // of the call in flight, kept for their capacity
  std::vector<DemoteParams::Page> demote_pages_;
  uint64_t demoted_pages_ = 0;  // since the start
  std::vector<SequenceId> recorded_sequences_;    // of the step prepared last
};

}  // namespace oscar::cache
