#include "src/kv/cache/device_verbs_cuda.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>

#include "src/base/status_macros.h"
#include "src/kv/codec/affine/cuda_feedback.h"
#include "src/kv/codec/affine/cuda_prefill.h"
#include "src/kv/codec/affine/device_convert.h"
#include "src/kv/codec/affine/device_layout.h"
#include "src/kv/codec/affine/layout.h"
#include "src/kv/kernels/cuda/decode_plan.h"
#include "src/kv/kernels/cuda/prefill_params.h"
#include "src/kv/kernels/cuda/separate_space.h"
#include "src/kv/kernels/cuda/step_rows.h"

namespace oscar::cache {

using kernels::cuda::DeviceRows;
using cuda::FromCuda;

namespace {

DeviceRows RowsOf(const RowsView<const float>& rows) { return {rows.data, rows.token_stride, rows.head_stride}; }

uint8_t* Bytes(std::byte* pages) { return reinterpret_cast<uint8_t*>(pages); }

int NumEncodedPages(const AttendParams& params, int position) {
  return (EncodedEnd(position, params.sink, params.recent, kPageTokens) - params.sink) / kPageTokens;
}

// Rounded up, so that sizes that grow with the context change rarely: what is recorded depends on them.
constexpr int kStridePages = 128;
constexpr std::size_t kScratchStep = 1024;
int RoundUp(int value, int step) { return (value + step - 1) / step * step; }
std::size_t RoundUp(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

std::atomic<uint64_t> num_device_verbs = 0;

// Bits of a code of what is encoded; 0: the device has no kernels for this codec. bf16 encodes nothing.
int CodeBits(std::string_view codec) {
  if (codec == "int1") return 1;
  if (codec == "int4") return 4;
  return codec == "bf16" || codec == "int2" ? 2 : 0;
}

// The blocks of a page, one per KV head, to the logical order of the codec.
template <int kBits>
void ToLogicalPage(const KvShape& shape, std::span<const uint8_t> blocks, std::span<std::byte> out) {
  using Layout = affine::PageLayout<kBits>;
  const int d = shape.head_dim;
  const auto block_bytes = static_cast<std::size_t>(affine::device::BlockBytes(kBits, d));
  const std::size_t num_codes = static_cast<std::size_t>(kPageTokens) * static_cast<std::size_t>(d);
  std::vector<uint8_t> codes[2] = {std::vector<uint8_t>(num_codes), std::vector<uint8_t>(num_codes)};
  uint16_t pairs[2][2][kPageTokens];
  std::fill(out.begin(), out.end(), std::byte{0});
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    const std::size_t start = static_cast<std::size_t>(head) * block_bytes;
    affine::RowsFromDeviceBlock(d, blocks.subspan(start, block_bytes), {codes[0], pairs[0][0], pairs[0][1]},
                                {codes[1], pairs[1][0], pairs[1][1]}, kBits);
    std::byte* const target = out.data() + start;
    for (const KvSide side : {KvSide::kKey, KvSide::kValue}) {
      const int s = side == KvSide::kKey ? 0 : 1;
      std::memcpy(target + Layout::ScalesStart(side, d), pairs[s][0], sizeof(pairs[s][0]));
      std::memcpy(target + Layout::OffsetsStart(side, d), pairs[s][1], sizeof(pairs[s][1]));
      auto* words = reinterpret_cast<uint32_t*>(target + Layout::CodesStart(side, d));
      for (int token = 0; token < kPageTokens; ++token) {
        for (int channel = 0; channel < d; ++channel) {
          const uint32_t code = codes[s][static_cast<std::size_t>(token) * static_cast<std::size_t>(d) + static_cast<std::size_t>(channel)];
          words[s == 0 ? Layout::KeyWord(token, channel, d) : Layout::ValueWord(token, channel)] |=
              code << (s == 0 ? Layout::KeyShift(channel) : Layout::ValueShift(token));
        }
      }
    }
  }
}

// Parts of the encoded pages of a prefill launch: enough CTAs for the machine, at least eight pages each.
int PrefillSplits(int num_ctas, int ctas_of_a_split, int num_pages) {
  const int wanted = (4 * num_ctas + ctas_of_a_split - 1) / ctas_of_a_split;
  return std::clamp(std::min(wanted, num_pages / 8), 1, 8);
}

}  // namespace

Result<std::unique_ptr<DeviceVerbs>> DeviceVerbs::Create(const KvMethod& method, const CodecProfile& profile,
                                                         const KvCacheConfig& config, cudaStream_t stream) {
  const KvShape& shape = config.shape;
  const int bits = method.codec == nullptr ? 0 : CodeBits(method.codec->name);
  if (bits == 0) {
    return {StatusCode::kUnsupported, "the CUDA device has kernels for bf16, int1, int2 and int4 only, not for " +
                                          (method.codec == nullptr ? std::string("no codec") : method.name())};
  }
  if (!affine::device::IsHeadDim(shape.head_dim)) {
    return {StatusCode::kUnsupported, "the CUDA device has no kernels for head dimension " + std::to_string(shape.head_dim) +
                                          ", only for 64, 128, 192 and 256"};
  }
  if (!(profile.shape() == shape)) return {StatusCode::kInvalidArgument, "the profile was made for another attention shape"};
  if (shape.group() > 16) {
    return {StatusCode::kUnsupported, std::to_string(shape.group()) + " query heads per KV head; the CUDA device takes at most 16"};
  }
  std::unique_ptr<DeviceVerbs> verbs(new DeviceVerbs(stream, bits));
  verbs->may_encode_ = !method.is_exact() && EncodedEnd(static_cast<int>(config.max_tokens) - 1, config.sink, config.recent, kPageTokens) > config.sink;
  OSCAR_TRY(verbs->Load(profile, config));
  return verbs;
}

DeviceVerbs::DeviceVerbs(cudaStream_t stream, int bits) : stream_(stream), id_(++num_device_verbs), bits_(bits) {}

DeviceVerbs::~DeviceVerbs() {
  cudaStreamSynchronize(stream_);
  for (const SideStream& side : sides_) {
    if (side.stream != nullptr) cudaStreamSynchronize(side.stream);
    if (side.stream != nullptr) cudaStreamDestroy(side.stream);
    if (side.ended != nullptr) cudaEventDestroy(side.ended);
  }
  if (forked_ != nullptr) cudaEventDestroy(forked_);
}

Status DeviceVerbs::Load(const CodecProfile& profile, const KvCacheConfig& config) {
  shape_ = config.shape;
  is_invariant_ = config.batch_invariant;
  kernel_ = affine::FindDecodeKernel(shape_.head_dim, shape_.group(), affine::DecodeKernelKind::kNormal, bits_);
  if (kernel_ == nullptr) return {StatusCode::kUnsupported, "the CUDA device has no decode kernel for this shape"};
  int device = 0;
  OSCAR_TRY(FromCuda(cudaGetDevice(&device), "device"));
  OSCAR_TRY(FromCuda(cudaDeviceGetAttribute(&num_ctas_, cudaDevAttrMultiProcessorCount, device), "device"));
  OSCAR_TRY(FromCuda(affine::PrepareDecodeKernel(*kernel_), "decode kernel"));
  OSCAR_TRY(FromCuda(affine::PreparePrefill(bits_), "prefill kernel"));
  OSCAR_TRY(FromCuda(affine::PrepareFeedback(), "demotion kernel"));
  OSCAR_TRY(constants_.Load(profile, bits_, stream_));
  const kernels::cuda::DeviceStatus fine = {};
  return status_.Upload({&fine, 1}, stream_);
}

Status DeviceVerbs::LoadPhases(const KernelContext& context) {
  if (phase_pages_ > 0 || context.page_phases.empty()) return {};
  OSCAR_TRY(phases_.Upload(context.page_phases, stream_));
  const auto d = static_cast<std::size_t>(shape_.head_dim), pairs = d / 2, pages = context.page_phases.size() / d;
  std::vector<float2> turns(pairs * pages);
  for (std::size_t page = 0; page < pages; ++page) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      turns[pair * pages + page] = {context.page_phases[page * d + pair], context.page_phases[page * d + pairs + pair]};
    }
  }
  OSCAR_TRY(turns_.Upload(turns, stream_));
  phase_pages_ = static_cast<int>(pages);
  return {};
}

Status DeviceVerbs::Append(const KernelContext& context, const AppendParams& params) {
  (void)context;
  OSCAR_TRY(JoinDemotions());
  constexpr int kMostTokens = kPageTokens * (kernels::cuda::kMostStoredPages - 1);
  for (int first = 0; first < params.keys.num_tokens; first += kMostTokens) {
    const int count = std::min(kMostTokens, params.keys.num_tokens - first);
    kernels::cuda::StoreRowsParams store = {};
    store.keys = RowsOf(params.keys.Slice(first, count));
    store.values = RowsOf(params.values.Slice(first, count));
    store.first_position = params.first_position + first;
    const int first_page = store.first_position / kPageTokens, last_page = (store.first_position + count - 1) / kPageTokens;
    for (int page = first_page; page <= last_page; ++page) {
      store.pages[page - first_page] = params.bf16_table[static_cast<std::size_t>(page)];
    }
    store.row_pool = Bytes(params.storage.bf16_pages);
    store.status = status_.data();
    store.layer = params.layer;
    store.kv_heads = shape_.num_kv_heads;
    store.head_dim = shape_.head_dim;
    is_unverified_ = true;
    OSCAR_TRY(FromCuda(kernels::cuda::LaunchStoreRows(store, count, stream_), "append"));
  }
  return {};
}

Status DeviceVerbs::Attend(const KernelContext& context, const AttendParams& params) {
  OSCAR_TRY(JoinDemotions());
  OSCAR_TRY(LoadPhases(context));
  if (is_invariant_) return AttendEach(context, params);
  const int num_sequences = static_cast<int>(params.sequences.size());
  Run run;
  for (int i = 0; i < num_sequences; i += run.count) {
    run.row += run.num_rows;
    run.first = i;
    run.count = 1;
    run.num_rows = params.sequences[static_cast<std::size_t>(i)].num_queries;
    if (run.num_rows != 1) {
      OSCAR_TRY(AttendPrefill(context, params, run));
      continue;
    }
    while (i + run.count < num_sequences && params.sequences[static_cast<std::size_t>(i + run.count)].num_queries == 1) ++run.count;
    run.num_rows = run.count;
    OSCAR_TRY(AttendDecode(context, params, run));
  }
  return {};
}

Status DeviceVerbs::AttendEach(const KernelContext& context, const AttendParams& params) {
  constexpr int kMostQueries = 64;  // of a launch: bounds its partial results
  std::vector<AttendSequence> queries;
  for (const AttendSequence& sequence : params.sequences) {
    for (int i = 0; i < sequence.num_queries; ++i) {
      AttendSequence& query = queries.emplace_back(sequence);
      query.first_position += i;
      query.num_queries = 1;
    }
  }
  AttendParams each = params;
  each.sequences = queries;
  const int num_queries = static_cast<int>(queries.size());
  for (int first = 0; first < num_queries; first += kMostQueries) {
    const int count = std::min(kMostQueries, num_queries - first);
    OSCAR_TRY(AttendDecode(context, each, {first, count, first, count}));
  }
  return {};
}

Status DeviceVerbs::SplitQueries(const AttendParams& params, const Run& run, bool has_encoded) {
  const std::size_t row_elements = static_cast<std::size_t>(shape_.num_query_heads) * static_cast<std::size_t>(shape_.head_dim);
  const std::size_t elements = static_cast<std::size_t>(run.num_rows) * row_elements;
  OSCAR_TRY(queries_.Grow(2 * elements));
  kernels::cuda::SplitQueriesParams split = {};
  split.queries = RowsOf(params.queries.Slice(run.row, run.num_rows));
  split.num_tokens = run.num_rows;
  split.kv_heads = shape_.num_kv_heads;
  split.group = shape_.group();
  split.head_dim = shape_.head_dim;
  split.matrices = constants_.layer(params.layer).query_map;
  split.raw = queries_.data() + elements;
  split.in_code_space = has_encoded ? queries_.data() : nullptr;
  return FromCuda(kernels::cuda::LaunchSplitQueries(split, stream_), "queries");
}

Status DeviceVerbs::GrowOutputs(std::size_t num_rows) {
  const auto heads = static_cast<std::size_t>(shape_.num_query_heads);
  OSCAR_TRY(outputs_.Grow(num_rows * heads * static_cast<std::size_t>(shape_.head_dim)));
  return lses_.Grow(num_rows * heads);
}

// Parts of the outputs: the BF16 rows, then the encoded parts.
Status DeviceVerbs::JoinSpaces(const AttendParams& params, const Run& run, int num_code_parts) {
  const LayerConstants& constants = constants_.layer(params.layer);
  const std::size_t lses = static_cast<std::size_t>(run.num_rows) * static_cast<std::size_t>(shape_.num_query_heads);
  const std::size_t elements = lses * static_cast<std::size_t>(shape_.head_dim);
  kernels::cuda::JoinSpacesParams join = {};
  join.code_outputs = outputs_.data() + elements;
  join.code_lses = lses_.data() + lses;
  join.num_code_parts = num_code_parts;
  join.row_outputs = outputs_.data();
  join.row_lses = lses_.data();
  join.queries = RowsOf(params.queries.Slice(run.row, run.num_rows));
  if (num_code_parts > 0) {
    join.matrices = constants.value_inverse;
    join.value_mean = constants.value_mean;
    join.key_mean = constants.key_mean;
  }
  join.scale = params.scale;
  const RowsView<float> out = params.out.Slice(run.row, run.num_rows);
  join.out = out.data;
  join.out_token_stride = out.token_stride;
  join.out_head_stride = out.head_stride;
  join.num_tokens = run.num_rows;
  join.kv_heads = shape_.num_kv_heads;
  join.group = shape_.group();
  join.head_dim = shape_.head_dim;
  return FromCuda(kernels::cuda::LaunchJoinSpaces(join, stream_), "merge");
}

Status DeviceVerbs::GrowPageBeta(int num_rows, int num_pages) {
  return page_beta_.Grow(static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(shape_.num_kv_heads) *
                         static_cast<std::size_t>(num_pages) * static_cast<std::size_t>(kernel_->head_tile));
}

Status DeviceVerbs::AddPageBeta(const AttendParams& params, int num_rows, int num_pages, const uint16_t* raw_queries) {
  const int sink_pages = params.sink / kPageTokens;
  OSCAR_TRY(GrowPageBeta(num_rows, num_pages));
  kernels::cuda::RotatingMeanParams mean = {};
  mean.queries = raw_queries;
  mean.pairs = constants_.layer(params.layer).mean_pairs;
  mean.turns = turns_.data() + sink_pages;
  mean.page_beta = page_beta_.data();
  mean.num_pairs = shape_.head_dim / 2;
  mean.num_pages = num_pages;
  mean.kv_heads = shape_.num_kv_heads;
  mean.group = shape_.group();
  mean.head_tile = kernel_->head_tile;
  mean.head_dim = shape_.head_dim;
  mean.kappa = params.scale * std::numbers::log2e_v<float>;
  mean.turn_stride = phase_pages_;
  return FromCuda(kernels::cuda::LaunchRotatingMean(mean, num_rows, stream_), "rotating mean");
}

Status DeviceVerbs::PlanDecodeRun(const AttendParams& params, const Run& run) {
  const auto count = static_cast<std::size_t>(run.count);
  const auto sequences = params.sequences.subspan(static_cast<std::size_t>(run.first), count);
  const int sink_pages = params.sink / kPageTokens;
  std::vector<kernels::cuda::SequenceExtent> extents(count);
  Plan plan;
  for (std::size_t i = 0; i < count; ++i) {
    const int position = sequences[i].first_position, pages = NumEncodedPages(params, position);
    extents[i].num_code_pages = pages;
    extents[i].num_rows = position + 1 - pages * kPageTokens;
    plan.code_stride = std::max(plan.code_stride, pages);
    plan.row_stride = std::max(plan.row_stride, (extents[i].num_rows + kPageTokens - 1) / kPageTokens);
  }
  // How a sequence is joined must not depend on whether another one has encoded pages.
  if (is_invariant_ && may_encode_) plan.code_stride = std::max(plan.code_stride, 1);
  plan.has_encoded = plan.code_stride > 0;
  plan.code_stride = RoundUp(plan.code_stride, kStridePages);
  if (phase_pages_ > 0) plan.code_stride = std::min(plan.code_stride, phase_pages_ - sink_pages);
  plan.row_stride = RoundUp(plan.row_stride, kStridePages);
  plan.code_table = 2 * count;
  plan.row_table = plan.code_table + count * static_cast<std::size_t>(plan.code_stride);
  plan.tables.assign(plan.row_table + count * static_cast<std::size_t>(plan.row_stride), 0);
  for (std::size_t i = 0; i < count; ++i) {
    const AttendSequence& sequence = sequences[i];
    const int pages = extents[i].num_code_pages, last_page = sequence.first_position / kPageTokens;
    plan.tables[i] = sequence.first_position;
    plan.tables[count + i] = sequence.bf16_table[static_cast<std::size_t>(last_page)];
    int32_t* code = plan.tables.data() + plan.code_table + i * static_cast<std::size_t>(plan.code_stride);
    for (int page = 0; page < pages; ++page) *code++ = sequence.encoded_table[static_cast<std::size_t>(sink_pages + page)];
    int32_t* rows = plan.tables.data() + plan.row_table + i * static_cast<std::size_t>(plan.row_stride);
    for (int page = 0; page <= last_page; ++page) {
      if (page < sink_pages || page >= sink_pages + pages) *rows++ = sequence.bf16_table[static_cast<std::size_t>(page)];
    }
  }
  if (plan.tables == plan_.tables && plan.code_stride == plan_.code_stride && plan.row_stride == plan_.row_stride) return {};
  plan_ = {};  // not kept should an upload fail
  OSCAR_TRY(tables_.Upload(plan.tables, stream_));
  kernels::cuda::DecodePlanOptions options;
  options.kv_heads = shape_.num_kv_heads;
  options.head_dim = shape_.head_dim;
  options.num_ctas = num_ctas_;
  const kernels::cuda::DecodePlan work = is_invariant_       ? kernels::cuda::PlanFixed(extents, options, plan.has_encoded)
                                         : plan.has_encoded ? kernels::cuda::PlanSpaces(extents, options)
                                                            : kernels::cuda::PlanDecode(extents, options);
  OSCAR_TRY(starts_.Upload(work.starts, stream_));
  OSCAR_TRY(items_.Grow(RoundUp(work.items.size(), kScratchStep)));
  OSCAR_TRY(items_.Upload(work.items, stream_));
  const auto slots = RoundUp(static_cast<std::size_t>(work.num_slots) * static_cast<std::size_t>(kernel_->head_tile), kScratchStep);
  OSCAR_TRY(partials_.Grow(slots * static_cast<std::size_t>(shape_.head_dim)));
  OSCAR_TRY(partial_stats_.Grow(slots * 4));
  const std::size_t num_pairs = count * static_cast<std::size_t>(shape_.num_kv_heads);
  if (pair_counters_.size() < num_pairs) {
    OSCAR_TRY(pair_counters_.Grow(num_pairs));
    OSCAR_TRY(FromCuda(cudaMemsetAsync(pair_counters_.data(), 0, num_pairs * sizeof(int32_t), stream_), "counters"));
  }
  plan_ = std::move(plan);
  return {};
}

Status DeviceVerbs::GrowDecode(std::size_t num_rows) {
  const auto heads = 2 * num_rows * static_cast<std::size_t>(shape_.num_query_heads);
  OSCAR_TRY(queries_.Grow(heads * static_cast<std::size_t>(shape_.head_dim)));
  if (beta_.size() >= heads) return {};
  OSCAR_TRY(beta_.Grow(heads));  // raw queries have none
  return FromCuda(cudaMemsetAsync(beta_.data(), 0, heads * sizeof(float), stream_), "scores");
}

Result<uint64_t> DeviceVerbs::PrepareStep(const KernelContext& context, const AttendParams& params) {
  OSCAR_TRY(JoinDemotions());
  OSCAR_TRY(LoadPhases(context));
  const int count = static_cast<int>(params.sequences.size());
  OSCAR_TRY(PlanDecodeRun(params, {0, count, 0, count}));
  OSCAR_TRY(GrowDecode(static_cast<std::size_t>(count)));
  const bool has_turning_mean = plan_.has_encoded && constants_.layer(0).mean_pairs != nullptr;
  if (has_turning_mean) OSCAR_TRY(GrowPageBeta(count, plan_.code_stride));
  // All that the launches are given besides the model's own: FNV-1a.
  uint64_t key = 0xCBF29CE484222325;
  const auto add = [&](uint64_t value) { key = (key ^ value) * 0x100000001B3; };
  const auto add_place = [&](const void* place) { add(reinterpret_cast<uintptr_t>(place)); };
  for (const int value : {count, plan_.code_stride, plan_.row_stride, plan_.has_encoded ? 1 : 0}) add(static_cast<uint64_t>(value));
  add(id_);
  for (const void* place : std::initializer_list<const void*>{tables_.data(), starts_.data(), items_.data(), partials_.data(), partial_stats_.data(),
                                                              pair_counters_.data(), queries_.data(), beta_.data(), page_beta_.data(),
                                                              turns_.data()}) {
    add_place(place);
  }
  return std::max<uint64_t>(key, 1);
}

Status DeviceVerbs::PrepareRows(const AttendParams& params, const Run& run, const AppendParams& append, const HeadTurn& turn) {
  const std::size_t heads = static_cast<std::size_t>(run.num_rows) * static_cast<std::size_t>(shape_.num_query_heads);
  const LayerConstants& constants = constants_.layer(params.layer);
  kernels::cuda::StepRowsParams rows = {};
  rows.queries = RowsOf(params.queries.Slice(run.row, run.num_rows));
  rows.keys = RowsOf(append.keys);
  rows.values = RowsOf(append.values);
  rows.query_gain = turn.query_gain;
  rows.key_gain = turn.key_gain;
  rows.epsilon = turn.epsilon;
  rows.turns = reinterpret_cast<const float2*>(turn.turns);
  rows.pairs = turn.pairs;
  rows.halves = turn.halves ? 1 : 0;
  rows.positions = tables_.data();
  rows.newest_pages = tables_.data() + run.num_rows;
  rows.row_pool = Bytes(params.storage.bf16_pages);
  rows.status = status_.data();
  rows.layer = params.layer;
  rows.num_rows = run.num_rows;
  rows.kv_heads = shape_.num_kv_heads;
  rows.group = shape_.group();
  rows.head_dim = shape_.head_dim;
  rows.kappa = params.scale * std::numbers::log2e_v<float>;
  rows.raw = queries_.data() + heads * static_cast<std::size_t>(shape_.head_dim);
  if (plan_.has_encoded) {
    rows.query_map = constants.query_map;
    rows.in_code_space = queries_.data();
    rows.key_mean = constants.key_mean;
    if (constants.key_mean.data != nullptr) rows.beta = beta_.data();
  }
  return FromCuda(kernels::cuda::LaunchStepRows(rows, stream_), "rows");
}

Status DeviceVerbs::AttendStep(const KernelContext& /*context*/, const AppendParams& append, const AttendParams& attend, const HeadTurn& turn) {
  const int count = append.keys.num_tokens;
  const Run run = {0, count, 0, count};
  is_unverified_ = true;
  OSCAR_TRY(PrepareRows(attend, run, append, turn));
  return LaunchAttention(attend, run);
}

Status DeviceVerbs::AttendDecode(const KernelContext& /*context*/, const AttendParams& params, const Run& run) {
  OSCAR_TRY(PlanDecodeRun(params, run));
  OSCAR_TRY(GrowDecode(static_cast<std::size_t>(run.count)));
  OSCAR_TRY(PrepareRows(params, run, {}, {}));
  return LaunchAttention(params, run);
}

Status DeviceVerbs::LaunchAttention(const AttendParams& params, const Run& run) {
  const LayerConstants& constants = constants_.layer(params.layer);
  const std::size_t elements = static_cast<std::size_t>(run.count) * static_cast<std::size_t>(shape_.num_query_heads) *
                               static_cast<std::size_t>(shape_.head_dim);
  kernels::cuda::DecodeParams decode = {};
  decode.queries = queries_.data() + (plan_.has_encoded ? 0 : elements);
  if (plan_.has_encoded && constants.key_mean.data != nullptr) decode.beta = beta_.data();
  if (plan_.has_encoded && constants.mean_pairs != nullptr) {
    OSCAR_TRY(AddPageBeta(params, run.count, plan_.code_stride, queries_.data() + elements));
    decode.page_beta = page_beta_.data();
  }
  decode.code_pool = Bytes(params.storage.encoded_pages);
  decode.row_pool = Bytes(params.storage.bf16_pages);
  decode.code_table = tables_.data() + plan_.code_table;
  decode.code_table_stride = plan_.code_stride;
  // The rows of sequence i are those of virtual sequence count + i where pages are encoded.
  decode.row_table = tables_.data() + plan_.row_table - (plan_.has_encoded ? run.count * plan_.row_stride : 0);
  decode.row_table_stride = plan_.row_stride;
  decode.starts = starts_.data();
  decode.items = items_.data();
  decode.partials = partials_.data();
  decode.partial_stats = partial_stats_.data();
  decode.pair_counters = pair_counters_.data();
  decode.kv_heads = shape_.num_kv_heads;
  decode.group = shape_.group();
  decode.kappa = params.scale * std::numbers::log2e_v<float>;
  const RowsView<float> out = params.out.Slice(run.row, run.num_rows);
  kernels::cuda::JoinParams& join = decode.join;
  join.out = out.data;
  join.token_stride = out.token_stride;
  join.head_stride = out.head_stride;
  if (plan_.has_encoded) {
    join.num_code_sequences = run.count;
    join.matrix = constants.value_inverse.data;
    join.matrix_stride = constants.value_inverse.head_stride;
    join.mean = constants.value_mean.data;
    join.mean_stride = constants.value_mean.head_stride;
  }
  return FromCuda(affine::LaunchDecode(*kernel_, decode, num_ctas_, /*overlap_start=*/true, stream_), "decode attention");
}

Status DeviceVerbs::AttendPrefill(const KernelContext& /*context*/, const AttendParams& params, const Run& run) {
  const AttendSequence& sequence = params.sequences[static_cast<std::size_t>(run.first)];
  const int last_position = sequence.first_position + run.num_rows - 1, num_pages = last_position / kPageTokens + 1;
  const int encoded_pages = NumEncodedPages(params, last_position), sink_pages = params.sink / kPageTokens;
  const bool has_encoded = encoded_pages > 0;
  std::vector<int32_t> tables(sequence.bf16_table.begin(), sequence.bf16_table.begin() + num_pages);
  if (has_encoded) {
    const auto first = sequence.encoded_table.begin() + sink_pages;
    tables.insert(tables.end(), first, first + encoded_pages);
  }
  if (tables != uploaded_prefill_tables_) {
    uploaded_prefill_tables_.clear();
    OSCAR_TRY(prefill_tables_.Upload(tables, stream_));
    uploaded_prefill_tables_ = std::move(tables);
  }
  OSCAR_TRY(SplitQueries(params, run, has_encoded));
  const int tiles = num_pages - sequence.first_position / kPageTokens;
  const int ctas = tiles * ((shape_.group() * kPageTokens + 127) / 128) * shape_.num_kv_heads;
  const int code_parts = has_encoded ? PrefillSplits(num_ctas_, ctas, encoded_pages) : 0;
  const auto num_rows = static_cast<std::size_t>(run.num_rows);
  OSCAR_TRY(GrowOutputs(static_cast<std::size_t>(1 + code_parts) * num_rows));
  const uint16_t* raw = queries_.data() + num_rows * static_cast<std::size_t>(shape_.num_query_heads) * static_cast<std::size_t>(shape_.head_dim);
  kernels::cuda::PrefillParams prefill = {};
  prefill.queries = queries_.data();
  prefill.row_queries = raw;
  prefill.code_pool = Bytes(params.storage.encoded_pages);
  prefill.row_pool = Bytes(params.storage.bf16_pages);
  prefill.row_table = prefill_tables_.data();
  prefill.code_table = prefill_tables_.data() + num_pages;
  prefill.first_position = sequence.first_position;
  prefill.num_tokens = run.num_rows;
  prefill.sink = params.sink;
  prefill.recent = std::min(params.recent, 1 << 30);  // all of it, without an overflow in sums
  prefill.kv_heads = shape_.num_kv_heads;
  prefill.group = shape_.group();
  prefill.kappa = params.scale * std::numbers::log2e_v<float>;
  prefill.num_splits = 1 + code_parts;
  prefill.partial_outputs = outputs_.data();
  prefill.partial_lses = lses_.data();
  if (has_encoded && constants_.layer(params.layer).mean_pairs != nullptr) {
    OSCAR_TRY(AddPageBeta(params, run.num_rows, encoded_pages, raw));
    prefill.page_beta = page_beta_.data();
    prefill.page_beta_stride = encoded_pages;
    prefill.page_beta_heads = kernel_->head_tile;
  }
  OSCAR_TRY(FromCuda(affine::LaunchPrefill(shape_.head_dim, prefill, stream_, bits_), "prefill attention"));
  return JoinSpaces(params, run, code_parts);
}

Result<PageMemory> DeviceVerbs::AllocatePages(std::size_t bytes) {
  if (bytes == 0) return PageMemory();
  cuda::DeviceArray<std::byte> array;
  OSCAR_TRY(array.Grow(bytes));
  OSCAR_TRY(FromCuda(cudaMemsetAsync(array.data(), 0, bytes, stream_), "pages"));
  auto owner = std::make_shared<cuda::DeviceArray<std::byte>>(std::move(array));
  std::byte* const data = owner->data();
  return PageMemory(data, [owner = std::move(owner)](std::byte*) mutable { owner.reset(); });
}

void DeviceVerbs::CopyPage(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (!JoinDemotions().ok()) return;  // a failure shows in Verify, as that of the copy
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_);
}

Status DeviceVerbs::ReadPage(const std::byte* page, std::span<std::byte> out) {
  OSCAR_TRY(JoinDemotions());
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(out.data(), page, out.size(), cudaMemcpyDeviceToHost, stream_), "read of a page"));
  return FromCuda(cudaStreamSynchronize(stream_), "read of a page");
}

Status DeviceVerbs::WritePage(std::byte* page, std::span<const std::byte> bytes) {
  OSCAR_TRY(JoinDemotions());
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(page, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_), "write of a page"));
  return FromCuda(cudaStreamSynchronize(stream_), "write of a page");
}

Status DeviceVerbs::ReadEncodedPage(const KernelContext& /*context*/, const std::byte* page, std::span<std::byte> out) {
  OSCAR_TRY(JoinDemotions());
  std::vector<uint8_t> blocks(out.size());
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(blocks.data(), page, blocks.size(), cudaMemcpyDeviceToHost, stream_), "read of a page"));
  OSCAR_TRY(FromCuda(cudaStreamSynchronize(stream_), "read of a page"));
  const auto convert = bits_ == 1 ? ToLogicalPage<1> : (bits_ == 2 ? ToLogicalPage<2> : ToLogicalPage<4>);
  convert(shape_, blocks, out);
  return {};
}

Status DeviceVerbs::Verify(const KernelContext& /*context*/) {
  if (!is_unverified_) return {};
  OSCAR_TRY(JoinDemotions());
  kernels::cuda::DeviceStatus status = {};
  OSCAR_TRY(FromCuda(cudaMemcpyAsync(&status, status_.data(), sizeof(status), cudaMemcpyDeviceToHost, stream_), "status"));
  OSCAR_TRY(FromCuda(cudaStreamSynchronize(stream_), "a step"));
  is_unverified_ = false;
  if (status.code == 0) return {};
  OSCAR_TRY(FromCuda(cudaMemsetAsync(status_.data(), 0, sizeof(status), stream_), "status"));
  return {StatusCode::kNonFinite, std::string(status.side == 0 ? "K" : "V") + " of layer " + std::to_string(status.layer) + ", KV head " +
                                      std::to_string(status.head) + " is not finite, or beyond fp16"};
}

}  // namespace oscar::cache
