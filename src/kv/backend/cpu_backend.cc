// The level 1 verbs of oscar/kernels.h on the CPU: every argument is checked here, then the codec's kernels run on the
// caller's executor.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "oscar/kernels.h"
#include "src/base/arena.h"
#include "src/base/status_macros.h"
#include "src/kv/codec/registry.h"
#include "src/kv/kernels/attend.h"
#include "src/kv/transform/turning_mean.h"

namespace oscar {
namespace {

constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 192, 256};
constexpr int kMaxGroup = 16;

Status Invalid(std::string why) { return {StatusCode::kInvalidArgument, std::move(why)}; }

Status CheckContext(const KernelContext& context, int layer) {
  const KvShape& shape = context.shape;
  if (context.codec == nullptr || context.profile == nullptr || context.executor == nullptr) {
    return Invalid("KV kernels: codec, profile or executor is missing");
  }
  if (shape.num_layers < 1 || shape.num_kv_heads < 1 || shape.num_query_heads < 1 || shape.num_query_heads % shape.num_kv_heads != 0) {
    return Invalid("KV kernels: " + std::to_string(shape.num_query_heads) + " query heads over " +
                   std::to_string(shape.num_kv_heads) + " KV heads in " + std::to_string(shape.num_layers) + " layers");
  }
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), shape.head_dim) == std::end(kHeadDims)) {
    return {StatusCode::kUnsupported, "KV kernels: head dimension " + std::to_string(shape.head_dim) +
                                          " has no kernels; 64, 80, 96, 112, 128, 192 and 256 have"};
  }
  if (shape.group() > kMaxGroup) {
    return {StatusCode::kUnsupported, "KV kernels: " + std::to_string(shape.group()) + " query heads per KV head; at most 16"};
  }
  if (layer < 0 || layer >= shape.num_layers) {
    return Invalid("KV kernels: layer " + std::to_string(layer) + " of " + std::to_string(shape.num_layers));
  }
  if (!(context.profile->shape() == shape)) return Invalid("KV kernels: the profile was made for another attention shape");
  const std::string& method = context.profile->method();
  if (method.substr(0, method.find(':')) != context.codec->name) {
    return Invalid("KV kernels: profile of " + method + " with codec " + std::string(context.codec->name));
  }
  if (context.codec->page_bytes == nullptr) return {};
  const CodecKernelEntry* entry = FindCpuKernels(*context.codec);
  if (entry == nullptr) {
    return {StatusCode::kUnsupported, "KV kernels: codec " + std::string(context.codec->name) + " has no CPU kernels"};
  }
  const kernels::RowCodec* row_codec = entry->kernels->row_codec;
  if (row_codec != nullptr && shape.num_kv_heads % row_codec->heads_together != 0) {
    return {StatusCode::kUnsupported, "KV kernels: " + std::string(context.codec->name) + " encodes " + std::to_string(row_codec->heads_together) +
                                          " KV heads together, of which there are " + std::to_string(shape.num_kv_heads)};
  }
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      if (Status status = entry->check_row(context.profile->row(layer, head, side)); !status.ok()) {
        return status.WithContext(method + ", layer " + std::to_string(layer) + ", KV head " + std::to_string(head));
      }
    }
  }
  return {};
}

using kernels::Bf16HeadBytes;

Status CheckStorage(const KernelContext& context, const LayerStorage& storage, bool needs_encoded) {
  const auto heads = static_cast<std::size_t>(context.shape.num_kv_heads);
  if (storage.bf16_pages == nullptr || storage.bf16_page_stride < heads * Bf16HeadBytes(context.shape.head_dim)) {
    return Invalid("KV kernels: BF16 pages are missing or their stride is too small");
  }
  if (!needs_encoded) return {};
  if (storage.encoded_pages == nullptr || storage.encoded_page_stride < heads * context.codec->page_bytes(context.shape.head_dim)) {
    return Invalid("KV kernels: encoded pages are missing or their stride is too small");
  }
  if (FindCpuKernels(*context.codec)->kernels->row_codec != nullptr) return {};  // read byte by byte
  if (reinterpret_cast<std::uintptr_t>(storage.encoded_pages) % 64 != 0 || storage.encoded_page_stride % 64 != 0) {
    return Invalid("KV kernels: encoded pages do not start at multiples of 64 bytes");
  }
  return {};
}

Status CheckRows(const char* what, const void* data, int num_heads, int head_dim, int expected_heads, int expected_dim) {
  if (data == nullptr || num_heads != expected_heads || head_dim != expected_dim) {
    return Invalid(std::string("KV kernels: ") + what + " have " + std::to_string(num_heads) + " heads of " + std::to_string(head_dim) +
                   ", expected " + std::to_string(expected_heads) + " of " + std::to_string(expected_dim));
  }
  return {};
}

// The page id at `page_index`, or kNoPage when the table ends before or holds a negative number.
int32_t PageAt(std::span<const int32_t> table, int page_index) {
  const auto index = static_cast<std::size_t>(page_index);
  return index < table.size() && table[index] >= 0 ? table[index] : kNoPage;
}

Status MissingPage(const char* kind, int page_index, int position) {
  return Invalid(std::string("KV kernels: no ") + kind + " page at page index " + std::to_string(page_index) +
                 ", which position " + std::to_string(position) + " needs");
}

// Pages 0 .. num_pages - 1 need their phases where the key mean turns.
Status CheckPhases(const KernelContext& context, int num_pages) {
  const auto needed = static_cast<std::size_t>(num_pages) * static_cast<std::size_t>(context.shape.head_dim);
  if (!context.profile->has_turning_mean() || context.page_phases.size() >= needed) return {};
  return Invalid("KV kernels: page_phases ends before page " + std::to_string(num_pages - 1));
}

const char* SideName(KvSide side) { return side == KvSide::kKey ? "K" : "V"; }

Status NonFiniteRow(int layer, int head, int64_t position, KvSide side, const char* why) {
  return {StatusCode::kNonFinite, std::string(SideName(side)) + " of layer " + std::to_string(layer) + ", KV head " +
                                      std::to_string(head) + ", position " + std::to_string(position) + " " + why};
}

// The first failure by (item, head, side), whichever thread found it.
class FirstFailure {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  explicit FirstFailure(int num_heads) : num_heads_(num_heads) {}
  void Report(int64_t item, int head, KvSide side) {
    const int64_t key = (item * num_heads_ + head) * 2 + (side == KvSide::kValue ? 1 : 0);
    int64_t seen = first_.load();
    while (key < seen && !first_.compare_exchange_weak(seen, key)) {
    }
  }
  bool failed() const { return first_.load() != kNone; }
  int64_t item() const { return first_.load() / 2 / num_heads_; }
  int head() const { return static_cast<int>(first_.load() / 2 % num_heads_); }
  KvSide side() const { return first_.load() % 2 == 0 ? KvSide::kKey : KvSide::kValue; }

 private:
  const int num_heads_;
  std::atomic<int64_t> first_{kNone};
};

Status CheckSequence(const KernelContext& context, const AttendParams& params, const AttendSequence& sequence) {
  if (sequence.num_queries < 0 || sequence.first_position < 0 ||
      sequence.first_position > std::numeric_limits<int>::max() - kPageTokens - sequence.num_queries) {
    return Invalid("KV kernels: " + std::to_string(sequence.num_queries) + " queries from position " +
                   std::to_string(sequence.first_position));
  }
  for (int query = 0; query < sequence.num_queries;) {
    // All queries of an aligned block of 64 positions see the same pages.
    const int position = sequence.first_position + query;
    const kernels::VisiblePages pages = kernels::PagesSeenFrom(position, params.sink, params.recent, kernels::UnitTokens(*context.codec));
    for (int i = 0; i < pages.end; ++i) {
      const bool encoded = i >= pages.sink_end && i < pages.recent_begin;
      if (PageAt(encoded ? sequence.encoded_table : sequence.bf16_table, i) == kNoPage) {
        return MissingPage(encoded ? "encoded" : "BF16", i, position);
      }
    }
    query += kPageTokens - position % kPageTokens;
  }
  if (sequence.num_queries == 0) return {};
  const int last_position = sequence.first_position + sequence.num_queries - 1;
  return CheckPhases(context, kernels::PagesSeenFrom(last_position, params.sink, params.recent, kernels::UnitTokens(*context.codec)).recent_begin);
}

Status CheckAttend(const KernelContext& context, const AttendParams& params) {
  OSCAR_TRY(CheckContext(context, params.layer));
  if (params.sink < 0 || params.recent < 0 || params.sink % kPageTokens != 0 || params.recent % kPageTokens != 0) {
    return Invalid("KV kernels: sink " + std::to_string(params.sink) + " and recent " + std::to_string(params.recent) +
                   " must be multiples of 64");
  }
  if (!std::isfinite(params.scale)) return Invalid("KV kernels: the score scale is not finite");
  int64_t num_queries = 0;
  for (const AttendSequence& sequence : params.sequences) {
    OSCAR_TRY(CheckSequence(context, params, sequence));
    num_queries += sequence.num_queries;
  }
  if (num_queries != params.queries.num_tokens || num_queries != params.out.num_tokens) {
    return Invalid("KV kernels: " + std::to_string(params.queries.num_tokens) + " query rows and " +
                   std::to_string(params.out.num_tokens) + " output rows for " + std::to_string(num_queries) + " queries");
  }
  const KvShape& shape = context.shape;
  if (num_queries == 0) return {};
  OSCAR_TRY(CheckRows("queries", params.queries.data, params.queries.num_heads, params.queries.head_dim, shape.num_query_heads, shape.head_dim));
  OSCAR_TRY(CheckRows("outputs", params.out.data, params.out.num_heads, params.out.head_dim, shape.num_query_heads, shape.head_dim));
  // A cache too short for an encoded page has none.
  const bool reads_encoded = std::any_of(params.sequences.begin(), params.sequences.end(), [&](const AttendSequence& sequence) {
    const int last = sequence.first_position + sequence.num_queries - 1;
    return kernels::PagesSeenFrom(last, params.sink, params.recent, kernels::UnitTokens(*context.codec)).num_encoded() > 0;
  });
  return CheckStorage(context, params.storage, reads_encoded);
}

}  // namespace

std::vector<float> PagePhases(const CodecProfile& profile, int num_pages) {
  if (!profile.has_turning_mean()) return {};
  const auto d = static_cast<std::size_t>(profile.shape().head_dim);
  std::vector<float> phases(d * static_cast<std::size_t>(num_pages));
  for (int page = 0; page < num_pages; ++page) {
    transform::FillPagePhases(profile.rotary(), page, std::span(phases).subspan(static_cast<std::size_t>(page) * d, d));
  }
  return phases;
}

Status Append(const KernelContext& context, const AppendParams& params) {
  OSCAR_TRY(CheckContext(context, params.layer));
  OSCAR_TRY(CheckStorage(context, params.storage, /*needs_encoded=*/false));
  const int n = params.keys.num_tokens, d = context.shape.head_dim, num_heads = context.shape.num_kv_heads;
  if (n != params.values.num_tokens) return Invalid("KV kernels: different numbers of key and value rows");
  if (n < 0 || params.first_position < 0 || params.first_position > std::numeric_limits<int>::max() - kPageTokens - n) {
    return Invalid("KV kernels: " + std::to_string(n) + " rows from position " + std::to_string(params.first_position));
  }
  if (n == 0) return {};
  OSCAR_TRY(CheckRows("keys", params.keys.data, params.keys.num_heads, params.keys.head_dim, num_heads, d));
  OSCAR_TRY(CheckRows("values", params.values.data, params.values.num_heads, params.values.head_dim, num_heads, d));
  for (int i = params.first_position / kPageTokens; i <= (params.first_position + n - 1) / kPageTokens; ++i) {
    if (PageAt(params.bf16_table, i) == kNoPage) return MissingPage("BF16", i, std::max(params.first_position, i * kPageTokens));
  }

  const kernels::StoreRowFn store_row = Bf16CpuKernels().store_row;
  FirstFailure failure(num_heads);
  const auto store_token = [&](int token) {
    const int position = params.first_position + token;
    const auto page = static_cast<std::size_t>(PageAt(params.bf16_table, position / kPageTokens));
    for (int head = 0; head < num_heads; ++head) {
      std::byte* head_rows = params.storage.bf16_pages + page * params.storage.bf16_page_stride +
                             static_cast<std::size_t>(head) * Bf16HeadBytes(d);
      auto* rows = reinterpret_cast<uint16_t*>(head_rows) + position % kPageTokens * d;
      if (!store_row(params.keys.Row(token, head), d, rows)) failure.Report(token, head, KvSide::kKey);
      if (!store_row(params.values.Row(token, head), d, rows + kPageTokens * d)) failure.Report(token, head, KvSide::kValue);
    }
  };
  constexpr int kTokensWorthAThread = 16;
  if (n < 2 * kTokensWorthAThread) {
    for (int token = 0; token < n; ++token) store_token(token);
  } else {
    RunOn(*context.executor, [&](int thread, int num_threads) {
      for (int token = thread; token < n; token += num_threads) store_token(token);
    });
  }
  if (!failure.failed()) return {};
  return NonFiniteRow(params.layer, failure.head(), params.first_position + failure.item(), failure.side(), "is not finite in bf16");
}

namespace {

// Every page is there, and encode units of two pages are whole.
Status CheckDemotedPages(std::span<const DemoteParams::Page> pages, std::size_t pages_per_unit) {
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const DemoteParams::Page& page = pages[i];
    if (page.page_index < 0 || page.bf16_page < 0 || page.encoded_page < 0) {
      return Invalid("KV kernels: page " + std::to_string(page.page_index) + " to demote has no BF16 or no encoded page");
    }
    if (i % pages_per_unit != 0 && page.page_index != pages[i - 1].page_index + 1) {
      return Invalid("KV kernels: page " + std::to_string(page.page_index) + " does not follow the page that it is encoded with");
    }
  }
  if (pages.size() % pages_per_unit != 0) {
    return Invalid("KV kernels: " + std::to_string(pages.size()) + " pages to demote, which are encoded " +
                   std::to_string(pages_per_unit) + " at a time");
  }
  return {};
}

// The call for one side of one KV head in the encode unit that begins with `pages[0]`.
kernels::DemoteSideParams DemoteCall(const KernelContext& context, const DemoteParams& params, const DemoteParams::Page* pages, int head,
                                     KvSide side) {
  const int d = context.shape.head_dim;
  const auto rows_of = [&](const DemoteParams::Page& page) {
    const std::byte* rows = params.storage.bf16_pages + static_cast<std::size_t>(page.bf16_page) * params.storage.bf16_page_stride +
                            static_cast<std::size_t>(head) * Bf16HeadBytes(d);
    return reinterpret_cast<const uint16_t*>(rows + kernels::Bf16SideStart(side, d));
  };
  const auto encoded_of = [&](const DemoteParams::Page& page) {
    return params.storage.encoded_pages + static_cast<std::size_t>(page.encoded_page) * params.storage.encoded_page_stride +
           static_cast<std::size_t>(head) * context.codec->page_bytes(d);
  };
  kernels::DemoteSideParams call;
  call.head_dim = d;
  call.side = side;
  call.row = context.profile->row(params.layer, head, side);
  call.mean = call.row.mean;
  call.rows = rows_of(pages[0]);
  call.encoded = encoded_of(pages[0]);
  call.row_codec = FindCpuKernels(*context.codec)->kernels->row_codec;
  if (context.codec->encode_tokens > kPageTokens) {
    call.second_rows = rows_of(pages[1]);
    call.second_encoded = encoded_of(pages[1]);
  }
  call.first_position = pages[0].page_index * kPageTokens;
  call.rotary = &context.profile->rotary();
  return call;
}

}  // namespace

Status Demote(const KernelContext& context, const DemoteParams& params) {
  OSCAR_TRY(CheckContext(context, params.layer));
  if (context.codec->page_bytes == nullptr) return Invalid("KV kernels: pages of codec bf16 are never encoded");
  OSCAR_TRY(CheckStorage(context, params.storage, /*needs_encoded=*/true));
  const auto pages_per_unit = static_cast<std::size_t>(context.codec->encode_tokens / kPageTokens);
  OSCAR_TRY(CheckDemotedPages(params.pages, pages_per_unit));
  const int num_heads = context.shape.num_kv_heads;
  for (const DemoteParams::Page& page : params.pages) OSCAR_TRY(CheckPhases(context, page.page_index + 1));
  const kernels::CodecKernels& kernels = *FindCpuKernels(*context.codec)->kernels;
  const int heads_together = kernels.row_codec == nullptr ? 1 : kernels.row_codec->heads_together;
  const auto num_items_of_unit = static_cast<std::size_t>(num_heads / heads_together) * 2;
  const std::size_t num_items = params.pages.size() / pages_per_unit * num_items_of_unit;
  FirstFailure failure(num_heads);
  std::atomic<std::size_t> next = 0;
  RunOn(*context.executor, [&](int /*thread*/, int /*num_threads*/) {
    for (std::size_t i = next.fetch_add(1); i < num_items; i = next.fetch_add(1)) {
      const std::size_t first_page = i / num_items_of_unit * pages_per_unit;
      const int head = static_cast<int>(i % num_items_of_unit / 2) * heads_together;
      const KvSide side = i % 2 == 0 ? KvSide::kKey : KvSide::kValue;
      kernels::DemoteSideParams call = DemoteCall(context, params, params.pages.data() + first_page, head, side);
      float turned[kernels::kMaxHeadDim];
      if (!call.row.page_mean.empty()) {
        const auto d = static_cast<std::size_t>(call.head_dim);
        const auto page_index = static_cast<std::size_t>(params.pages[first_page].page_index);
        transform::TurnMean(context.profile->rotary(), call.row.page_mean, context.page_phases.subspan(page_index * d, d), {turned, d});
        call.mean = {turned, d};
      }
      if (const int slot = kernels.demote(call); slot >= 0) {
        failure.Report(static_cast<int64_t>(first_page) * kPageTokens + slot, head, side);
      }
    }
  });
  if (!failure.failed()) return {};
  const DemoteParams::Page& page = params.pages[static_cast<std::size_t>(failure.item() / kPageTokens)];
  return NonFiniteRow(params.layer, failure.head(), static_cast<int64_t>(page.page_index) * kPageTokens + failure.item() % kPageTokens,
                      failure.side(), "cannot be encoded: it is not finite, or beyond fp16");
}

std::size_t AttendWorkspaceBytes(const KernelContext& context, const AttendParams& params) {
  base::Arena counting;
  kernels::PlanAttend(context.shape, params, kernels::UnitTokens(*context.codec), context.executor->num_threads(), counting);
  return counting.bytes_needed();
}

Status Attend(const KernelContext& context, const AttendParams& params) {
  OSCAR_TRY(CheckAttend(context, params));
  if (params.queries.num_tokens == 0) return {};
  const bool encodes = context.codec->page_bytes != nullptr;
  const std::size_t needed = AttendWorkspaceBytes(context, params);
  if (params.workspace.size() < needed) {
    return Invalid("KV kernels: a workspace of " + std::to_string(params.workspace.size()) + " bytes, attention needs " + std::to_string(needed));
  }
  base::Arena arena(params.workspace);
  const kernels::AttendPlan plan = kernels::PlanAttend(context.shape, params, kernels::UnitTokens(*context.codec), context.executor->num_threads(), arena);
  kernels::AttendKernels attend;
  attend.bf16 = &Bf16CpuKernels();
  if (encodes) {
    attend.encoded = FindCpuKernels(*context.codec)->kernels;
    attend.encoded_head_bytes = context.codec->page_bytes(context.shape.head_dim);
  }
  kernels::RunAttend(context, params, attend, plan);
  return {};
}

}  // namespace oscar
