#include "src/kv/cache/paged_kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace oscar::cache {
namespace {

std::string Name(SequenceId id) { return "sequence " + std::to_string(id); }

std::string ShapeName(const KvShape& shape) {
  return std::to_string(shape.num_layers) + " layers, " + std::to_string(shape.num_query_heads) + " query heads, " +
         std::to_string(shape.num_kv_heads) + " KV heads, head_dim " + std::to_string(shape.head_dim);
}

void AppendDims(std::string& text, int num_tokens, int num_heads, int head_dim) {
  text.append("[").append(std::to_string(num_tokens)).append(", ").append(std::to_string(num_heads));
  text.append(", ").append(std::to_string(head_dim)).append("]");
}

Status CheckProfile(const KvMethod& method, const CodecProfile& profile, const KvCacheConfig& config) {
  if (profile.method() != method.name()) {
    return {StatusCode::kInvalidArgument,
            "the profile is for " + profile.method() + ", the cache is to be " + method.name()};
  }
  if (!(profile.shape() == config.shape)) {
    return {StatusCode::kInvalidArgument,
            "the profile is for " + ShapeName(profile.shape()) + "; the cache is to have " + ShapeName(config.shape)};
  }
  return {};
}

// No sequence has more: every token there is room for, the slack of all sequences, and a step in flight.
int MaxPages(const KvCacheConfig& config) {
  return static_cast<int>((config.max_tokens + config.max_step_tokens) / kPageTokens + config.max_sequences + 2);
}

}  // namespace

Result<std::unique_ptr<PagedKvCache>> PagedKvCache::Create(const KvMethod& method, CodecProfile profile,
                                                           const KvCacheConfig& config, Executor& executor,
                                                           std::unique_ptr<KvVerbs> verbs) {
  OSCAR_CHECK(verbs != nullptr);
  if (method.codec == nullptr) return {StatusCode::kInvalidArgument, "a KV cache needs a codec"};
  OSCAR_ASSIGN_OR_RETURN(const pool::CapacityPlan plan, pool::PlanCapacity(config, *method.codec));
  OSCAR_TRY(CheckProfile(method, profile, config));
  OSCAR_ASSIGN_OR_RETURN(PageMemory bf16_bytes, verbs->AllocatePages(plan.bf16_bytes()));
  OSCAR_ASSIGN_OR_RETURN(PageMemory encoded_bytes, verbs->AllocatePages(plan.encoded_bytes()));
  std::unique_ptr<PagedKvCache> cache(new PagedKvCache({method, std::move(profile), config, &executor, std::move(verbs),
                                                        plan, std::move(bf16_bytes), std::move(encoded_bytes)}));
  OSCAR_TRY(cache->CheckVerbs());
  return cache;
}

// An append of no rows checks all that does not depend on rows: a shape, codec or profile without kernels is an error
// now and not in the first step.
Status PagedKvCache::CheckVerbs() {
  for (int layer = 0; layer < config_.shape.num_layers; ++layer) {
    AppendParams append;
    append.layer = layer;
    append.storage = Storage(layer);
    append.keys = append.values = {nullptr, 0, config_.shape.num_kv_heads, config_.shape.head_dim, 0, 0};
    OSCAR_TRY(verbs_->Append(context_, append));
  }
  return {};
}

PagedKvCache::PagedKvCache(Parts parts)
    : method_(std::move(parts.method)),
      profile_(std::move(parts.profile)),
      config_(std::move(parts.config)),
      verbs_(std::move(parts.verbs)),
      plan_(parts.plan),
      page_phases_(PagePhases(profile_, MaxPages(config_))),
      context_{method_.codec, &profile_, config_.shape, parts.executor, page_phases_},
      bf16_bytes_(std::move(parts.bf16_bytes)),
      encoded_bytes_(std::move(parts.encoded_bytes)),
      bf16_pool_("BF16", plan_.bf16_pages),
      encoded_pool_("encoded", plan_.encoded_pages),
      prefixes_(plan_.windows) {}

// --- Sequences
// ---------------------------------------------------------------------------------------------------------

const PagedKvCache::Sequence* PagedKvCache::Find(SequenceId id) const {
  if (id < 0) return nullptr;
  const auto slot = static_cast<std::size_t>(id % config_.max_sequences);
  return slot < sequences_.size() && sequences_[slot]->id == id ? sequences_[slot].get() : nullptr;
}

Result<PagedKvCache::Sequence*> PagedKvCache::Get(SequenceId id) {
  const Sequence* sequence = Find(id);
  if (sequence == nullptr) return {StatusCode::kNotFound, Name(id) + " does not exist"};
  return const_cast<Sequence*>(sequence);
}

Result<PagedKvCache::Sequence*> PagedKvCache::GetIdle(SequenceId id) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, Get(id));
  if (sequence->step) return {StatusCode::kFailedPrecondition, Name(id) + " has a step in flight"};
  return sequence;
}

Result<PagedKvCache::Sequence*> PagedKvCache::GetInStep(SequenceId id, int layer) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, Get(id));
  if (!sequence->step) return {StatusCode::kFailedPrecondition, Name(id) + " has no step in flight: Reserve first"};
  if (layer < 0 || layer >= config_.shape.num_layers) {
    return {StatusCode::kInvalidArgument, "layer " + std::to_string(layer) + " of a cache with " +
                                              std::to_string(config_.shape.num_layers) + " layers"};
  }
  return sequence;
}

// An id is slot + k * max_sequences with k counting the lives of the slot, so that the id of a released sequence does
// not name the next one.
Result<PagedKvCache::Sequence*> PagedKvCache::FreeSequence() {
  std::size_t slot = 0;
  while (slot < sequences_.size() && sequences_[slot]->pages) ++slot;
  if (slot == static_cast<std::size_t>(config_.max_sequences)) {
    return {StatusCode::kResourceExhausted,
            "all " + std::to_string(config_.max_sequences) + " sequences of the cache are alive"};
  }
  if (slot == sequences_.size()) {
    sequences_.push_back(std::make_unique<Sequence>());
    sequences_.back()->next_id = static_cast<SequenceId>(slot);
  }
  return sequences_[slot].get();
}

Result<SequenceId> PagedKvCache::NewSequence() {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, FreeSequence());
  return Occupy(*sequence, pool::SequencePages(plan_.windows));
}

Result<SequenceId> PagedKvCache::Fork(SequenceId id) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const parent, GetIdle(id));
  OSCAR_ASSIGN_OR_RETURN(Sequence* const child, FreeSequence());
  const int length = parent->pages->length();
  pool::PageRef last_page;
  if (length % kPageTokens != 0) {
    Result<pool::PageRef> page = TakePage(PageKind::kBf16);
    if (!page.ok()) return page.status().WithContext("fork of " + Name(id));
    last_page = std::move(page).value();
    CopyBf16Page(parent->pages->SlotFor(length).page, last_page.id());
  }
  const SequenceId id_of_child = Occupy(*child, parent->pages->Fork(std::move(last_page)));
  child->era = parent->era;
  return id_of_child;
}

SequenceId PagedKvCache::Occupy(Sequence& place, pool::SequencePages pages) {
  place.pages = std::move(pages);
  place.layer_appended.assign(static_cast<std::size_t>(config_.shape.num_layers), 0);
  place.id = place.next_id;
  place.era = era_;
  return place.id;
}

Result<int> PagedKvCache::Truncate(SequenceId id, int length) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetIdle(id));
  const int current = sequence->pages->length();
  if (length < 0 || length > current) {
    return {StatusCode::kInvalidArgument,
            Name(id) + " of " + std::to_string(current) + " tokens cannot be truncated to " + std::to_string(length)};
  }
  const int resumable = sequence->pages->ResumableLength(length);
  sequence->pages->Truncate(resumable);
  return resumable;
}

Status PagedKvCache::Release(SequenceId id) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, Get(id));
  sequence->step.reset();
  sequence->pages.reset();
  sequence->id = kNoSequence;
  const int64_t next_life = int64_t{id} + config_.max_sequences;
  sequence->next_id = next_life <= std::numeric_limits<SequenceId>::max() ? static_cast<SequenceId>(next_life)
                                                                          : id % config_.max_sequences;
  return {};
}

int PagedKvCache::length(SequenceId id) const {
  const Sequence* sequence = Find(id);
  OSCAR_CHECK_MSG(sequence != nullptr, Name(id) + " does not exist");
  return sequence->pages->length();
}

SegmentTokens PagedKvCache::segments(SequenceId id) const { return pool::SegmentsAt(length(id), plan_.windows); }

// --- Steps
// -------------------------------------------------------------------------------------------------------------

Status PagedKvCache::Reserve(SequenceId id, int num_tokens) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetIdle(id));
  if (num_tokens < 1 || num_tokens > config_.max_step_tokens) {
    return {StatusCode::kInvalidArgument, "a step of " + std::to_string(num_tokens) +
                                              " tokens; this cache takes 1 to " +
                                              std::to_string(config_.max_step_tokens)};
  }
  while (!sequence->step) {
    Result<pool::Reservation> step = pool::Reservation::Make(*sequence->pages, bf16_pool_, encoded_pool_, num_tokens);
    if (step.ok()) {
      sequence->step.emplace(std::move(step).value());
    } else if (step.status().code() != StatusCode::kResourceExhausted ||
               !MakeRoom(pool::Reservation::PagesNeeded(*sequence->pages, num_tokens))) {
      return step.status().WithContext(Name(id));
    }
  }
  std::fill(sequence->layer_appended.begin(), sequence->layer_appended.end(), uint8_t{0});
  if (const auto copy = sequence->step->copy()) CopyBf16Page(copy->from, copy->to);
  if (const Status begun = DemoteAhead(*sequence); !begun.ok()) {
    sequence->step.reset();
    return begun;
  }
  return {};
}

void PagedKvCache::ListDemotions(const Sequence& sequence) {
  const pool::PageRange range = sequence.step->demotions();
  demote_pages_.clear();
  for (int index = range.first; index < range.end; ++index) {
    demote_pages_.push_back({index, pool::TableEntry(sequence.pages->bf16().page(index).id()), pool::TableEntry(sequence.pages->encoded().page(index).id())});
  }
}

// Pages that were full before this step, as in decoding, need not wait for its rows.
Status PagedKvCache::DemoteAhead(Sequence& sequence) {
  sequence.is_demoted_ahead = false;
  const pool::PageRange range = sequence.step->demotions();
  if (range.size() == 0 || range.end * kPageTokens > sequence.step->first_position()) return {};
  ListDemotions(sequence);
  std::vector<DemoteParams> layers(static_cast<std::size_t>(config_.shape.num_layers));
  for (int layer = 0; layer < config_.shape.num_layers; ++layer) {
    DemoteParams& demote = layers[static_cast<std::size_t>(layer)];
    demote.layer = layer;
    demote.storage = Storage(layer);
    demote.pages = demote_pages_;
  }
  OSCAR_ASSIGN_OR_RETURN(sequence.is_demoted_ahead, verbs_->DemoteAhead(context_, layers));
  return {};
}

Status PagedKvCache::CheckRows(const char* name, const RowsView<const float>& rows, int num_tokens,
                               int num_heads) const {
  if (rows.data != nullptr && rows.num_tokens == num_tokens && rows.num_heads == num_heads &&
      rows.head_dim == config_.shape.head_dim) {
    return {};
  }
  std::string message = std::string(name) + " are ";
  if (rows.data == nullptr) {
    message += "null";
  } else {
    AppendDims(message, rows.num_tokens, rows.num_heads, rows.head_dim);
  }
  message += ", needed ";
  AppendDims(message, num_tokens, num_heads, config_.shape.head_dim);
  return {StatusCode::kInvalidArgument, std::move(message)};
}

Status PagedKvCache::Append(SequenceId id, int layer, RowsView<const float> keys, RowsView<const float> values) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetInStep(id, layer));
  const pool::Reservation& step = *sequence->step;
  uint8_t& appended = sequence->layer_appended[static_cast<std::size_t>(layer)];
  if (appended != 0) {
    return {StatusCode::kFailedPrecondition,
            Name(id) + ": layer " + std::to_string(layer) + " has been appended in this step"};
  }
  OSCAR_TRY(CheckRows("keys", keys, step.num_tokens(), config_.shape.num_kv_heads));
  OSCAR_TRY(CheckRows("values", values, step.num_tokens(), config_.shape.num_kv_heads));

  AppendParams append;
  append.layer = layer;
  append.storage = Storage(layer);
  append.bf16_table = sequence->pages->bf16().entries();
  append.first_position = step.first_position();
  append.keys = keys;
  append.values = values;
  OSCAR_TRY(verbs_->Append(context_, append));

  // The rows of these pages are complete now. Queries of this step see some of them encoded and, earlier ones, still as
  // BF16: both forms stand until Commit (method.md 5.2).
  const pool::PageRange range = step.demotions();
  if (range.size() > 0 && !sequence->is_demoted_ahead) {
    ListDemotions(*sequence);
    DemoteParams demote;
    demote.layer = layer;
    demote.storage = append.storage;
    demote.pages = demote_pages_;
    OSCAR_TRY(verbs_->Demote(context_, demote));
  }
  appended = 1;
  return {};
}

Result<AttendParams> PagedKvCache::ParamsOfAttend(std::span<const SequenceId> sequences, int layer, float scale,
                                                  RowsView<const float> queries, RowsView<float> out) {
  if (!std::isfinite(scale)) return {StatusCode::kInvalidArgument, "the attention scale is not finite"};
  attend_sequences_.clear();
  int64_t num_queries = 0;
  for (const SequenceId id : sequences) {
    OSCAR_ASSIGN_OR_RETURN(const Sequence* const sequence, GetInStep(id, layer));
    if (sequence->layer_appended[static_cast<std::size_t>(layer)] == 0) {
      return {StatusCode::kFailedPrecondition,
              Name(id) + ": layer " + std::to_string(layer) + " attends before its rows are appended"};
    }
    const pool::Reservation& step = *sequence->step;
    attend_sequences_.push_back({step.first_position(), step.num_tokens(), sequence->pages->bf16().entries(),
                                 sequence->pages->encoded().entries()});
    num_queries += step.num_tokens();
  }
  if (num_queries == 0) return {StatusCode::kInvalidArgument, "attention over no sequences"};
  if (num_queries > std::numeric_limits<int>::max()) {
    return {StatusCode::kInvalidArgument, std::to_string(num_queries) + " queries in one call"};
  }
  const int num_heads = config_.shape.num_query_heads;
  OSCAR_TRY(CheckRows("queries", queries, static_cast<int>(num_queries), num_heads));
  const RowsView<const float> out_rows = {out.data,     out.num_tokens,   out.num_heads,
                                          out.head_dim, out.token_stride, out.head_stride};
  OSCAR_TRY(CheckRows("outputs", out_rows, static_cast<int>(num_queries), num_heads));

  AttendParams attend;
  attend.layer = layer;
  attend.storage = Storage(layer);
  attend.sink = plan_.windows.sink;
  attend.recent = plan_.windows.recent;
  attend.scale = scale;
  attend.batch_invariant = config_.batch_invariant;
  attend.sequences = attend_sequences_;
  attend.queries = queries;
  attend.out = out;
  OSCAR_TRY(GrowWorkspace(verbs_->AttendWorkspaceBytes(context_, attend)));
  attend.workspace = workspace_.bytes();
  return attend;
}

Status PagedKvCache::Attend(std::span<const SequenceId> sequences, int layer, float scale,
                            RowsView<const float> queries, RowsView<float> out) {
  OSCAR_ASSIGN_OR_RETURN(const AttendParams attend, ParamsOfAttend(sequences, layer, scale, queries, out));
  return verbs_->Attend(context_, attend);
}

Result<uint64_t> PagedKvCache::PrepareRecordedStep(std::span<const SequenceId> sequences) {
  recorded_sequences_.clear();
  attend_sequences_.clear();
  for (const SequenceId id : sequences) {
    OSCAR_ASSIGN_OR_RETURN(const Sequence* const sequence, GetInStep(id, /*layer=*/0));
    const pool::Reservation& step = *sequence->step;
    if (step.num_tokens() != 1 || (step.demotions().size() > 0 && !sequence->is_demoted_ahead)) return uint64_t{0};
    attend_sequences_.push_back({step.first_position(), 1, sequence->pages->bf16().entries(), sequence->pages->encoded().entries()});
  }
  AttendParams attend;
  attend.storage = Storage(0);
  attend.sink = plan_.windows.sink;
  attend.recent = plan_.windows.recent;
  attend.sequences = attend_sequences_;
  OSCAR_ASSIGN_OR_RETURN(const uint64_t key, verbs_->PrepareStep(context_, attend));
  if (key != 0) recorded_sequences_.assign(sequences.begin(), sequences.end());
  return key;
}

Status PagedKvCache::AttendRecorded(int layer, float scale, const RecordedRows& rows, RowsView<float> out) {
  const int num_tokens = static_cast<int>(recorded_sequences_.size());
  if (num_tokens == 0) return {StatusCode::kFailedPrecondition, "no recorded step was prepared"};
  OSCAR_TRY(CheckRows("keys", rows.keys, num_tokens, config_.shape.num_kv_heads));
  OSCAR_TRY(CheckRows("values", rows.values, num_tokens, config_.shape.num_kv_heads));
  if (rows.turn.turns != nullptr && (rows.turn.pairs < 1 || 2 * rows.turn.pairs > config_.shape.head_dim)) {
    return {StatusCode::kInvalidArgument, std::to_string(rows.turn.pairs) + " rotary pairs in heads of " + std::to_string(config_.shape.head_dim)};
  }
  for (const SequenceId id : recorded_sequences_) {
    OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetInStep(id, layer));
    sequence->layer_appended[static_cast<std::size_t>(layer)] = 1;
  }
  OSCAR_ASSIGN_OR_RETURN(const AttendParams attend, ParamsOfAttend(recorded_sequences_, layer, scale, rows.queries, out));
  AppendParams append;
  append.layer = layer;
  append.storage = attend.storage;
  append.keys = rows.keys;
  append.values = rows.values;
  return verbs_->AttendStep(context_, append, attend, rows.turn);
}

Status PagedKvCache::NoteReplay() {
  if (recorded_sequences_.empty()) return {StatusCode::kFailedPrecondition, "no recorded step was prepared"};
  for (const SequenceId id : recorded_sequences_) {
    OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetInStep(id, /*layer=*/0));
    std::fill(sequence->layer_appended.begin(), sequence->layer_appended.end(), uint8_t{1});
  }
  verbs_->NoteReplay();
  return {};
}

Status PagedKvCache::Commit(SequenceId id, int num_tokens) {
  OSCAR_ASSIGN_OR_RETURN(Sequence* const sequence, GetInStep(id, /*layer=*/0));
  if (num_tokens < 0 || num_tokens > sequence->step->num_tokens()) {
    return {StatusCode::kInvalidArgument, Name(id) + ": commit of " + std::to_string(num_tokens) + " of " +
                                              std::to_string(sequence->step->num_tokens()) + " reserved tokens"};
  }
  const auto missing = std::find(sequence->layer_appended.begin(), sequence->layer_appended.end(), 0);
  if (num_tokens > 0 && missing != sequence->layer_appended.end()) {
    return {StatusCode::kFailedPrecondition, Name(id) + ": commit before layer " +
                                                 std::to_string(missing - sequence->layer_appended.begin()) +
                                                 " has been appended"};
  }
  OSCAR_TRY(verbs_->Verify(context_));
  if (num_tokens > 0) demoted_pages_ += static_cast<uint64_t>(sequence->step->demotions().size());
  sequence->step->Commit(num_tokens);
  sequence->step.reset();
  recorded_sequences_.clear();
  return {};
}

void PagedKvCache::Abandon(SequenceId id) {
  if (const Result<Sequence*> sequence = Get(id); sequence.ok()) (*sequence)->step.reset();
}

// --- Memory
// ------------------------------------------------------------------------------------------------------------

LayerStorage PagedKvCache::Storage(int layer) const {
  const auto num_layers = static_cast<std::size_t>(config_.shape.num_layers);
  const auto index = static_cast<std::size_t>(layer);
  LayerStorage storage;
  storage.bf16_page_stride = plan_.bf16_page_bytes / num_layers;
  storage.bf16_pages =
      bf16_bytes_.get() + index * storage.bf16_page_stride * static_cast<std::size_t>(plan_.bf16_pages);
  storage.encoded_page_stride = plan_.encoded_page_bytes / num_layers;
  if (encoded_bytes_ != nullptr) {
    storage.encoded_pages =
        encoded_bytes_.get() + index * storage.encoded_page_stride * static_cast<std::size_t>(plan_.encoded_pages);
  }
  return storage;
}

void PagedKvCache::CopyBf16Page(pool::PageId from, pool::PageId to) {
  for (int layer = 0; layer < config_.shape.num_layers; ++layer) {
    verbs_->CopyPage(PageOfLayer(PageKind::kBf16, layer, to), PageOfLayer(PageKind::kBf16, layer, from), Storage(layer).bf16_page_stride);
  }
}

// A quarter more than asked for: a growing context makes few allocations and a steady one none.
Status PagedKvCache::GrowWorkspace(std::size_t bytes) {
  if (bytes <= workspace_.size()) return {};
  OSCAR_ASSIGN_OR_RETURN(workspace_, base::Buffer::Allocate(bytes + bytes / 4));
  return {};
}

KvCacheStats PagedKvCache::stats() const {
  KvCacheStats stats;
  stats.bf16_page_bytes = plan_.bf16_page_bytes;
  stats.encoded_page_bytes = plan_.encoded_page_bytes;
  stats.bf16_pages_total = bf16_pool_.num_pages();
  stats.bf16_pages_used = bf16_pool_.num_used();
  stats.encoded_pages_total = encoded_pool_.num_pages();
  stats.encoded_pages_used = encoded_pool_.num_used();
  stats.demoted_pages = demoted_pages_;
  stats.workspace_bytes = workspace_.size();
  return stats;
}

Status PagedKvCache::ReadEncodedPage(SequenceId id, int layer, int page_index, std::span<std::byte> out) const {
  const Sequence* sequence = Find(id);
  if (sequence == nullptr) return {StatusCode::kNotFound, Name(id) + " does not exist"};
  if (layer < 0 || layer >= config_.shape.num_layers) {
    return {StatusCode::kInvalidArgument, "layer " + std::to_string(layer) + " of a cache with " +
                                              std::to_string(config_.shape.num_layers) + " layers"};
  }
  // Pages that a step in flight encodes do not count before its commit.
  const int end_page = pool::EncodedEnd(sequence->pages->length(), plan_.windows) / kPageTokens;
  if (page_index < plan_.windows.sink / kPageTokens || page_index >= end_page) {
    return {StatusCode::kNotFound, Name(id) + ": page " + std::to_string(page_index) + " is not encoded"};
  }
  const LayerStorage storage = Storage(layer);
  if (out.size() != storage.encoded_page_stride) {
    return {StatusCode::kInvalidArgument, "an encoded page has " + std::to_string(storage.encoded_page_stride) +
                                              " bytes, the output " + std::to_string(out.size())};
  }
  const auto page = static_cast<std::size_t>(sequence->pages->encoded().page(page_index).id());
  return verbs_->ReadEncodedPage(context_, storage.encoded_pages + page * storage.encoded_page_stride, out);
}

}  // namespace oscar::cache
