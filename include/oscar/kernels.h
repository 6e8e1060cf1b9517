// Level 1 of liboscar: stateless verbs on the caller's pointers and page tables. No allocation beyond the given workspace, no
// globals, no logging; bad arguments are a Status. KvCache (kv_cache.h) is built on these, and so can another engine be.
//
// Storage of one layer (logical CPU layout; docs/kv-format.md):
//   BF16 page    [kv_head][K: 64 rows of d bf16, V: 64 rows of d bf16]     256 * d bytes per KV head; rows are raw (not
//                transformed): the online mode of method.md 6.1
//   encoded page [kv_head][codec.page_bytes(d)]
// A page table maps the page index of a sequence (position / 64) to a page id, or to kNoPage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "oscar/executor.h"
#include "oscar/result.h"
#include "oscar/types.h"

namespace oscar {

inline constexpr int32_t kNoPage = -1;

// Tier rule (method.md 5.1). The first position that is still BF16 behind the sink for a query at `position`:
// B(p) = max(0, 64 floor((p - recent) / 64)).
constexpr int FirstRecentPosition(int position, int recent) {
  return position <= recent ? 0 : (position - recent) / kPageTokens * kPageTokens;
}
// End of the encoded segment that a query at `position` sees: encoded tokens are [sink, EncodedEnd), whole units of
// CodecInfo::encode_tokens counted from the sink (baselines.md 2). For units of one page it is max(sink, B(position)).
constexpr int EncodedEnd(int position, int sink, int recent, int unit_tokens) {
  if (position <= recent || position - recent <= sink) return sink;
  return sink + (position - recent - sink) / unit_tokens * unit_tokens;
}
// Token `token` is encoded for the query at `position` exactly when sink <= token < EncodedEnd.
constexpr bool IsEncoded(int token, int position, int sink, int recent, int unit_tokens = kPageTokens) {
  return token >= sink && token < EncodedEnd(position, sink, recent, unit_tokens);
}

// The pages of one layer.
struct LayerStorage {
  std::byte* bf16_pages = nullptr;        // page id i at i * bf16_page_stride
  std::size_t bf16_page_stride = 0;       // bytes; num_kv_heads * 256 * d
  std::byte* encoded_pages = nullptr;     // page id i at i * encoded_page_stride; null for bf16
  std::size_t encoded_page_stride = 0;    // bytes; num_kv_heads * codec.page_bytes(d)
};

struct KernelContext {
  const CodecInfo* codec = nullptr;
  const CodecProfile* profile = nullptr;
  KvShape shape;
  Executor* executor = nullptr;
  // PagePhases(*profile, n) for more pages than any page index of a call; empty when no mean turns.
  std::span<const float> page_phases;
};

// How far the pairs of keys have turned at the first position of each page: [num_pages, d], the cosines of 64 n theta_j of all
// d / 2 pairs (0 turns for channels that do not turn), then the sines. Empty when no mean of the profile turns.
std::vector<float> PagePhases(const CodecProfile& profile, int num_pages);

// Stores f32 rows of K and V as bf16 (round to nearest even) at positions first_position, first_position + 1, ...
struct AppendParams {
  int layer = 0;
  LayerStorage storage;
  std::span<const int32_t> bf16_table;  // by page index; every touched page must be present
  int first_position = 0;
  RowsView<const float> keys;    // [n, num_kv_heads, d], after QK norm and RoPE
  RowsView<const float> values;  // [n, num_kv_heads, d]
};

// Centres, transforms, clips, quantises and packs whole pages of one layer: BF16 page in, encoded page out. A codec of 128
// encode_tokens takes its pages in pairs of neighbours, first page first.
struct DemoteParams {
  int layer = 0;
  LayerStorage storage;
  struct Page {
    int page_index = 0;       // position / 64 of its first token: the rotating mean depends on it
    int32_t bf16_page = kNoPage;
    int32_t encoded_page = kNoPage;
  };
  std::span<const Page> pages;
};

// One sequence of an attention call: queries at positions first_position .. first_position + num_queries - 1, which see all
// cached tokens up to themselves, each in the tier that the rule gives it. Their own K and V must have been appended.
struct AttendSequence {
  int first_position = 0;
  int num_queries = 0;
  std::span<const int32_t> bf16_table;     // by page index; kNoPage where no query of this call reads the page as BF16
  std::span<const int32_t> encoded_table;  // by page index; kNoPage where no query of this call reads the page encoded
};

struct AttendParams {
  int layer = 0;
  LayerStorage storage;
  int sink = 64;     // multiples of 64
  int recent = 256;
  float scale = 0.0f;  // 1 / sqrt(d), usually
  // Each query is a pass over its pages of its own, so that its outputs have the same bits whichever queries of its sequence come
  // with it. Otherwise the neighbours in an aligned block of 64 positions share a pass, in which sums may be taken in another order.
  bool batch_invariant = false;
  std::span<const AttendSequence> sequences;
  RowsView<const float> queries;  // [sum of num_queries, num_query_heads, d], after QK norm and RoPE
  RowsView<float> out;            // same shape
  std::span<std::byte> workspace;  // at least AttendWorkspaceBytes(...)
};

// Errors of the three verbs: kInvalidArgument (shape, table or stride does not fit), kUnsupported (head dimension not in
// {64, 80, 96, 112, 128, 192, 256}), kNonFinite naming layer, head, position and side (Append and Demote).
Status Append(const KernelContext& context, const AppendParams& params);
Status Demote(const KernelContext& context, const DemoteParams& params);
Status Attend(const KernelContext& context, const AttendParams& params);
std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params);

// Partial softmax results joined (method.md 6.2): out = sum w_i o_i / sum w_i, w_i = exp(lse_i - max lse). Natural logs.
// Empty parts have lse = -inf and do not count; all parts empty gives zeros and -inf.
struct PartialState {
  std::span<const float> output;  // [d], normalised
  float lse = 0.0f;
};
float MergeStates(std::span<const PartialState> parts, std::span<float> output);

}  // namespace oscar
