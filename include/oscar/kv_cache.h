// Level 2 of liboscar: KvCache, a paged cache of many sequences in three segments: sink (BF16), body (encoded), recent (BF16).
// It owns the pools, decides tiers (method.md 5), demotes whole pages and attends. One thread calls it at a time.
//
// A step over some sequences:
//   1. Reserve(seq, n) for each sequence: all pages the step needs, or kResourceExhausted and nothing changed.
//   2. for each layer: Append(seq, layer, k, v) for each sequence, then Attend(layer, queries): pages that a query of the
//      step, or the next one after it, sees encoded are demoted by Append as soon as they are complete.
//   3. Commit(seq, n) for each sequence: length grows by n, BF16 pages that left the window are released. The state is then
//      exactly that of method.md 5.4 for the new length, however the tokens came in.
// A step that fails in between is undone by Abandon(seq): the length and the state are those before Reserve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "oscar/executor.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

struct KvCacheConfig {
  KvShape shape;
  int sink = 64;             // multiple of 64; method.md 5.1
  int recent = 256;          // multiple of 64
  int64_t max_tokens = 4096; // tokens of all sequences together that must fit
  int max_sequences = 1;     // concurrent sequences: each owns its BF16 window and sink
  int max_step_tokens = 512; // largest n of one Reserve: bounds the BF16 pages in flight
  int prefix_pages = 0;      // BF16 pages beside those of the sequences, for windows of prefixes (prefix_cache.h)
  bool batch_invariant = false;  // AttendParams::batch_invariant in every call
};

// Exact bytes (method.md 4). All pools are allocated at creation; "used" counts pages that are held.
struct KvCacheStats {
  std::size_t bf16_page_bytes = 0;      // all layers and heads
  std::size_t encoded_page_bytes = 0;
  int bf16_pages_total = 0, bf16_pages_used = 0;
  int encoded_pages_total = 0, encoded_pages_used = 0;
  uint64_t demoted_pages = 0;           // encoded from BF16 pages since the start
  std::size_t workspace_bytes = 0;
  std::size_t allocated_bytes() const {
    return bf16_page_bytes * bf16_pages_total + encoded_page_bytes * encoded_pages_total + workspace_bytes;
  }
  std::size_t used_bytes() const {
    return bf16_page_bytes * bf16_pages_used + encoded_page_bytes * encoded_pages_used;
  }
};

// Tokens of one sequence by segment, for reports.
struct SegmentTokens {
  int sink = 0, body = 0, recent = 0;  // BF16, encoded, BF16
};

using SequenceId = int32_t;

// What queries and keys of a recorded step still need before attention: each head over its root mean square times a gain (QK norm),
// then RoPE. Memory of the device.
struct HeadTurn {
  const float* query_gain = nullptr;  // [d]; null: no norm
  const float* key_gain = nullptr;    // [d]
  float epsilon = 0;
  const float* turns = nullptr;       // cosine and sine of each rotary pair of each row [rows, pairs, 2]; null: no RoPE
  int pairs = 0;                      // <= d / 2; further dimensions are not turned
  bool halves = false;                // pairs (i, i + pairs) instead of (2 i, 2 i + 1)
};

// Rows of a recorded step in one layer, one of each sequence.
struct RecordedRows {
  RowsView<const float> queries;       // [sequences, num_query_heads, d] f32
  RowsView<const float> keys, values;  // [sequences, num_kv_heads, d]
  HeadTurn turn;
};

class PrefixCache;

class KvCache {
 public:
  // kInvalidArgument for windows that are not multiples of 64, or a shape or method that is not the profile's;
  // kUnsupported for a head dimension without kernels; kResourceExhausted when the pools cannot be
  // allocated. The executor must outlive the cache.
  static Result<std::unique_ptr<KvCache>> Create(const KvMethod& method, CodecProfile profile, const KvCacheConfig& config,
                                                 Executor& executor);
  virtual ~KvCache() = default;

  // An empty sequence. kResourceExhausted when max_sequences are alive.
  virtual Result<SequenceId> NewSequence() = 0;
  // A second sequence with the same tokens; pages are shared, a partial last page is copied. Needs no step in flight.
  virtual Result<SequenceId> Fork(SequenceId sequence) = 0;
  // Shortens to the largest length m <= length from which the sequence can be continued exactly (method.md 5.4), and
  // returns m: `length` itself while the BF16 window of `length` is held, otherwise `sink` or less. The caller recomputes
  // tokens m .. length - 1. kInvalidArgument unless 0 <= length <= length(sequence). Needs no step in flight. (To take back
  // draft tokens, commit fewer: that never loses the window.)
  virtual Result<int> Truncate(SequenceId sequence, int length) = 0;
  // Also with a step in flight. The id names no sequence afterwards.
  virtual Status Release(SequenceId sequence) = 0;

  // Committed tokens. Precondition of both: the sequence is alive.
  virtual int length(SequenceId sequence) const = 0;
  virtual SegmentTokens segments(SequenceId sequence) const = 0;

  // kNotFound for a sequence that does not exist, kFailedPrecondition for calls out of order: so all below.
  // num_tokens: 1 .. config().max_step_tokens, else kInvalidArgument.
  virtual Status Reserve(SequenceId sequence, int num_tokens) = 0;
  // keys, values: [n, num_kv_heads, d] f32 with n of the Reserve. kNonFinite names layer, head, position and side.
  virtual Status Append(SequenceId sequence, int layer, RowsView<const float> keys, RowsView<const float> values) = 0;
  // Queries of all `sequences`, one after the other, n_i each as reserved: [sum n_i, num_query_heads, d] f32.
  virtual Status Attend(std::span<const SequenceId> sequences, int layer, float scale, RowsView<const float> queries,
                        RowsView<float> out) = 0;
  // Recorded steps, for a device whose launches can be kept and run again. PrepareRecordedStep sees to all that the launches of a step
  // read, if each of these sequences has one token reserved and no page is demoted, and returns a number that names the launches:
  // those of another step with the same number are the same. 0: not such a step, or not such a cache. Then either
  // AttendRecorded for each layer, which appends and attends, or NoteReplay where the launches of such calls are run again. Nothing
  // else is called before Commit.
  virtual Result<uint64_t> PrepareRecordedStep(std::span<const SequenceId> /*sequences*/) { return uint64_t{0}; }
  virtual Status AttendRecorded(int /*layer*/, float /*scale*/, const RecordedRows& /*rows*/, RowsView<float> /*out*/) {
    return {StatusCode::kFailedPrecondition, "no recorded step was prepared"};
  }
  virtual Status NoteReplay() { return {StatusCode::kFailedPrecondition, "no recorded step was prepared"}; }
  // The first num_tokens of the reserved tokens stay, 0 <= num_tokens <= n; the others are dropped as if they had never been
  // (rejected drafts). All layers must have been appended, unless num_tokens is 0. A cache on a device says only here that
  // rows were not finite (kNonFinite): then nothing of the step is committed.
  virtual Status Commit(SequenceId sequence, int num_tokens) = 0;
  // Does nothing when no step is in flight.
  virtual void Abandon(SequenceId sequence) = 0;

  // Pages kept by their tokens (prefix_cache.h); null in a cache that keeps none.
  virtual PrefixCache* prefixes() { return nullptr; }

  virtual KvCacheStats stats() const = 0;
  virtual const KvMethod& method() const = 0;
  virtual const CodecProfile& profile() const = 0;
  virtual const KvCacheConfig& config() const = 0;
  // Copies the encoded bytes of one page of one layer (all KV heads), for tests and tools. kNotFound when the page of that
  // sequence is not encoded.
  virtual Status ReadEncodedPage(SequenceId sequence, int layer, int page_index, std::span<std::byte> out) const = 0;
};

// Bits per element held by a sequence of `num_tokens` tokens, K and V together: codes, scales, offsets and BF16 windows
// (method.md 4, BPE(T)), and the parts that make it up. Preconditions: num_tokens >= 0, windows are multiples of 64 from 0 on.
struct BitsLedger {
  double payload = 0;       // code bits of an encoded element
  double steady = 0;        // + scale and offset as stored
  double at_length = 0;     // + BF16 windows, exact tokens of each segment
  double allocated = 0;     // + unfilled page slots
  SegmentTokens tokens;
};
BitsLedger LedgerAt(const KvMethod& method, int head_dim, int num_tokens, int sink, int recent);

}  // namespace oscar
