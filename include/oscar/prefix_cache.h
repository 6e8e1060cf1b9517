// The prefix cache of a KvCache (KvCache::prefixes): pages kept by the tokens they hold, so that a sequence that begins with
// known tokens goes on from the longest point where that is exact.
//
// A sequence can be continued at length m only where the BF16 rows of its window [EncodedEnd(m), m) are held, beside the sink and
// the encoded pages before them (method.md 5.4): a resume point. Publish makes one at the length of a sequence; it serves every
// shorter length whose window begins at the same page. A resumed sequence has the same tiers and the same bytes as one that
// computed all its tokens: pages are written once and shared by counted handles, a partial last page is copied by who writes it.
//
// What only prefixes hold is given up when a sequence needs pages, the least recently used first, so a full prefix cache never
// refuses a sequence. Calls are for the thread that owns the KvCache, with no step of the named sequence in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "oscar/kv_cache.h"
#include "oscar/result.h"

namespace oscar {

// What goes first when BF16 pages are short: kSpare before kNormal, within each the least recently used.
enum class PrefixRetention : uint8_t { kSpare, kNormal };

struct PrefixMatch {
  int matched = 0;             // leading tokens that are known, resumable or not
  int resumable = 0;           // length of the sequence that Resume would give
  int live_encoded_pages = 0;  // encoded pages of that sequence that living sequences hold too: they cost no new page
};

struct PrefixStats {
  int resume_points = 0;
  int64_t tokens = 0;          // in pages held for good (sink and encoded), each page once
  int idle_bf16_pages = 0;     // held by prefixes alone: given up when a sequence needs them
  int idle_encoded_pages = 0;
  uint64_t evicted_tokens = 0;  // since the start, by need of pages
};

// Is told which pages tokens can be resumed on, for whoever sends requests where their prefixes are. Pages are named by all tokens up to their
// end: `tokens` are whole pages from the first one on, and those from `first_page` on are meant. Called on the cache's thread, in the order in
// which it happens; must not call the cache.
class PrefixObserver {
 public:
  virtual ~PrefixObserver() = default;
  // A resume point makes them reusable that were not.
  virtual void Stored(std::string_view space, std::span<const int32_t> tokens, int first_page) = 0;
  // The last resume point that did is gone.
  virtual void Removed(std::string_view space, std::span<const int32_t> tokens, int first_page) = 0;
  // None is reusable any more.
  virtual void Cleared() = 0;
};

// A sequence outside the pools: bytes of the pages that it alone held, handles on the others. Must be destroyed before its cache.
class ParkedSequence {
 public:
  virtual ~ParkedSequence() = default;
  virtual int length() const = 0;
  virtual std::size_t host_bytes() const = 0;
};

// The resume points of one moment with copies of their pages; lives on without its cache.
class PrefixCopy {
 public:
  virtual ~PrefixCopy() = default;
  virtual int resume_points() const = 0;
  virtual std::size_t bytes() const = 0;
  // As PrefixCache::Save, on any thread.
  virtual Status Save(const std::filesystem::path& path) const = 0;
};

class PrefixCache {
 public:
  virtual ~PrefixCache() = default;

  // Tokens meet only tokens of the same `space` (a tenant, a salt; any bytes). Changes nothing.
  virtual PrefixMatch Match(std::string_view space, std::span<const int32_t> tokens) const = 0;
  // A new sequence that holds the longest resumable prefix of `tokens`, possibly empty; KvCache::length says how many tokens.
  // kResourceExhausted when max_sequences are alive.
  virtual Result<SequenceId> Resume(std::string_view space, std::span<const int32_t> tokens) = 0;
  // Keeps the pages of a sequence, whose tokens are `tokens`, and makes a resume point at its length. Fewer than 64 tokens are
  // not kept, nor is anything of a sequence older than the last Clear. kInvalidArgument when `tokens` has another length.
  virtual Status Publish(SequenceId sequence, std::string_view space, std::span<const int32_t> tokens, PrefixRetention retention) = 0;
  // Forgets all prefixes. Pages that sequences hold stay with them; later matches find nothing of before.
  virtual void Clear() = 0;
  virtual PrefixStats prefix_stats() const = 0;
  // Tells `observer` of every reusable page (Stored), and from here on of every change. Null: nobody. It must outlive the cache or be
  // replaced before it goes.
  virtual void Observe(PrefixObserver* observer) = 0;

  // Takes a sequence out of the pools, exactly as it is, and releases its id. kResourceExhausted without memory: it stays.
  virtual Result<std::unique_ptr<ParkedSequence>> Park(SequenceId sequence) = 0;
  // Brings it back under a new id. On an error (kResourceExhausted: no pages, no place) `parked` keeps its state and may be tried
  // again; after success it is empty.
  virtual Result<SequenceId> Unpark(ParkedSequence& parked) = 0;

  // Writes every resume point and its pages to a file, atomically: a process that dies meanwhile leaves the file that was there.
  // `identity` names what the cache cannot know (the model's digest); the rest of the key is method, profile, windows, shape and
  // layout. kIoError, kResourceExhausted.
  virtual Status Save(const std::filesystem::path& path, std::string_view identity) const = 0;
  // What Save would write, copied: for a caller that goes on with steps while the file is written. kResourceExhausted without memory.
  virtual Result<std::unique_ptr<PrefixCopy>> Copy(std::string_view identity) const = 0;
  // Adds the resume points of a file, the most recently used first, as long as free pages last; returns how many. A file of
  // another key is kFailedPrecondition, a damaged one kCorruptData; then nothing is loaded. kNotFound, kIoError.
  virtual Result<int> Restore(const std::filesystem::path& path, std::string_view identity) = 0;
};

}  // namespace oscar
