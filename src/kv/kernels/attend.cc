#include "src/kv/kernels/attend.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "src/kv/kernels/merge_states.h"
#include "src/kv/transform/apply_transform.h"
#include "src/kv/transform/turning_mean.h"

namespace oscar::kernels {
namespace {

class AttendRun {
 public:
  AttendRun(const KernelContext& context, const AttendParams& params, const AttendKernels& kernels, const AttendPlan& plan)
      : context_(context), params_(params), kernels_(kernels), plan_(plan), d_(context.shape.head_dim) {}

  void Run() {
    const int64_t transform_work = plan_.any_encoded ? plan_.num_rows * d_ * d_ : 0;
    if (plan_.any_encoded) ForEach(plan_.tiles.size(), transform_work, [this](size_t i, int) { TransformTile(plan_.tiles[i]); });
    ForEach(plan_.parts.size(), PartWork(), [this](size_t i, int thread) { AttendOnePart(plan_.parts[i], thread); });
    ForEach(plan_.tiles.size(), transform_work + plan_.num_part_rows * d_, [this](size_t i, int) { MergeTile(plan_.tiles[i]); });
  }

 private:
  // Multiply-adds below which waking the other threads costs more than they save: about 20 us of one thread.
  static constexpr int64_t kWorthThreads = 1 << 20;

  int64_t PartWork() const {
    int64_t work = 0;
    for (const AttendPart& part : plan_.parts) {
      work += int64_t{2} * kPageTokens * d_ * part.num_pages * plan_.tiles[static_cast<size_t>(part.tile)].num_rows();
    }
    return work;
  }

  // Items go to whichever thread is free: each writes its own place, so the result does not depend on who takes what.
  template <class Fn>
  void ForEach(size_t count, int64_t work, const Fn& fn) {
    if (work < kWorthThreads) {
      for (size_t i = 0; i < count; ++i) fn(i, 0);
      return;
    }
    std::atomic<size_t> next = 0;
    RunOn(*context_.executor, [&](int thread, int /*num_threads*/) {
      for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) fn(i, thread);
    });
  }

  // Row r of a tile is (query r / num_heads, head r % num_heads).
  base::StridedRows<const float> RawQueries(const AttendTile& tile) const {
    const RowsView<const float>& queries = params_.queries;
    const int head = tile.kv_head * context_.shape.group() + tile.first_head;
    return {queries.Row(static_cast<int>(tile.query_token), head), tile.num_heads, queries.token_stride, queries.head_stride};
  }
  base::StridedRows<float> DenseTileRows(float* rows, const AttendTile& tile) const {
    return {rows + tile.first_row * d_, tile.num_heads, static_cast<std::ptrdiff_t>(tile.num_heads) * d_, d_};
  }

  void TransformTile(const AttendTile& tile) const {
    if (tile.num_encoded_parts == 0) return;
    const RowProfile row = context_.profile->row(params_.layer, tile.kv_head, KvSide::kKey);
    const base::StridedRows<const float> queries = RawQueries(tile);
    transform::TransformQueries(*row.transform, queries, tile.num_rows(), DenseTileRows(plan_.transformed_queries, tile));
    if (row.page_mean.empty()) return;
    for (int r = 0; r < tile.num_rows(); ++r) {
      transform::MeanTerms(context_.profile->rotary(), row.page_mean, queries.Row(r), ScaleLog2(),
                           plan_.mean_terms + (tile.first_row + r) * d_);
    }
  }

  float ScaleLog2() const { return params_.scale * std::numbers::log2e_v<float>; }

  // Pages [first, first + count) of the BF16 pages that lie in [0, sink_end) and [recent_begin, end).
  static PageRuns Bf16Runs(const AttendSequence& sequence, const VisiblePages& pages, int first, int count) {
    PageRuns runs;
    const int in_sink = std::clamp(pages.sink_end - first, 0, count);
    runs.ids[0] = sequence.bf16_table.data() + first;
    runs.num_pages[0] = in_sink;
    runs.ids[1] = sequence.bf16_table.data() + pages.recent_begin + std::max(0, first - pages.sink_end);
    runs.num_pages[1] = count - in_sink;
    return runs;
  }

  void AttendOnePart(const AttendPart& part, int thread) const {
    const AttendTile& tile = plan_.tiles[static_cast<size_t>(part.tile)];
    const AttendSequence& sequence = params_.sequences[static_cast<size_t>(tile.sequence)];
    const int first_position = sequence.first_position + tile.first_query;
    const VisiblePages pages =
        PagesSeenFrom(first_position + tile.num_queries - 1, params_.sink, params_.recent, UnitTokens(*context_.codec));
    AttendPartParams call;
    call.head_dim = d_;
    call.num_rows = tile.num_rows();
    call.scale_log2 = ScaleLog2();
    const size_t kv_head = static_cast<size_t>(tile.kv_head);
    if (part.encoded) {
      const base::StridedRows<float> rows = DenseTileRows(plan_.transformed_queries, tile);
      call.queries = {rows.data, rows.num_inner, rows.outer_stride, rows.inner_stride};
      call.pages = params_.storage.encoded_pages + kv_head * kernels_.encoded_head_bytes;
      call.page_stride = params_.storage.encoded_page_stride;
      call.runs.ids[0] = sequence.encoded_table.data() + pages.sink_end + part.first_page;
      call.runs.num_pages[0] = part.num_pages;
      call.first_encoded_page = part.first_page;
      call.first_page_index = pages.sink_end + part.first_page;
      call.row_codec = kernels_.encoded->row_codec;
      if (call.row_codec != nullptr) {
        call.head_together = tile.kv_head % call.row_codec->heads_together;
        call.pages -= static_cast<size_t>(call.head_together) * kernels_.encoded_head_bytes;
        call.rotary = &context_.profile->rotary();
        call.channel_order = context_.profile->row(params_.layer, tile.kv_head - call.head_together, KvSide::kKey).channel_order;
      }
      if (!context_.profile->row(params_.layer, tile.kv_head, KvSide::kKey).page_mean.empty()) {
        call.mean_terms = plan_.mean_terms + tile.first_row * d_;
        call.page_phases = context_.page_phases.data() + static_cast<std::ptrdiff_t>(pages.sink_end + part.first_page) * d_;
      }
    } else {
      call.queries = RawQueries(tile);
      call.pages = params_.storage.bf16_pages + kv_head * Bf16HeadBytes(d_);
      call.page_stride = params_.storage.bf16_page_stride;
      call.runs = Bf16Runs(sequence, pages, part.first_page, part.num_pages);
      call.causal_last_page = part.last;  // the page of the queries themselves
      call.last_page_tokens = first_position % kPageTokens + 1;
    }
    call.scratch = plan_.scratch + plan_.scratch_bytes * static_cast<size_t>(thread);
    call.sums = plan_.SumsAt(plan_.part_sums, part.first_row);
    const CodecKernels& kernels = part.encoded ? *kernels_.encoded : *kernels_.bf16;
    (call.num_rows <= kMaxDecodeRows ? kernels.decode_attention : kernels.prefill_attention)(call);
  }

  PartialSums MergeParts(const AttendTile& tile, int first_part, int num_parts, const PartialSums& into) const {
    if (num_parts == 1) return plan_.SumsAt(plan_.part_sums, plan_.parts[static_cast<size_t>(first_part)].first_row);
    const PartialSums total = plan_.SumsAt(into, tile.first_row);
    ClearPartialSums(tile.num_rows(), d_, total);
    for (int i = first_part; i < first_part + num_parts; ++i) {
      AddPartialSums(plan_.SumsAt(plan_.part_sums, plan_.parts[static_cast<size_t>(i)].first_row), tile.num_rows(), d_, total);
    }
    return total;
  }

  void MergeTile(const AttendTile& tile) const {
    const PartialSums total = MergeParts(tile, tile.first_part + tile.num_encoded_parts, tile.num_bf16_parts, plan_.bf16_sums);
    if (tile.num_encoded_parts > 0) {
      const PartialSums encoded = MergeParts(tile, tile.first_part, tile.num_encoded_parts, plan_.encoded_sums);
      AddPartialSums(FromCodeSpace(tile, encoded), tile.num_rows(), d_, total);
    }
    for (int r = 0; r < tile.num_rows(); ++r) {
      const int head = tile.kv_head * context_.shape.group() + tile.first_head + r % tile.num_heads;
      float* out = params_.out.Row(static_cast<int>(tile.query_token) + r / tile.num_heads, head);
      const float* sums = total.output + static_cast<std::ptrdiff_t>(r) * d_;
      const float reciprocal = 1.0f / total.sum[r];
      for (int c = 0; c < d_; ++c) out[c] = sums[c] * reciprocal;
    }
  }

  // The encoded partial of a tile, out of code space: (sum p y) A_V^-1 + (sum p) mu_V, and the constant q . mu_K of its scores.
  PartialSums FromCodeSpace(const AttendTile& tile, const PartialSums& encoded) const {
    const RowProfile key = context_.profile->row(params_.layer, tile.kv_head, KvSide::kKey);
    const RowProfile value = context_.profile->row(params_.layer, tile.kv_head, KvSide::kValue);
    PartialSums sums = encoded;
    sums.output = plan_.inverse_outputs + tile.first_row * d_;
    transform::ApplyInverse(*value.transform, base::DenseRows<const float>(encoded.output, d_), tile.num_rows(),
                            base::DenseRows(sums.output, d_));
    const base::StridedRows<const float> queries = RawQueries(tile);
    for (int r = 0; r < tile.num_rows(); ++r) {
      if (!key.mean.empty() && key.page_mean.empty()) {
        double product = 0;
        for (int c = 0; c < d_; ++c) product += static_cast<double>(queries.Row(r)[c]) * static_cast<double>(key.mean[static_cast<size_t>(c)]);
        sums.max[r] += static_cast<float>(product * static_cast<double>(params_.scale) * std::numbers::log2e);
      }
      if (!value.mean.empty()) {
        float* output = sums.output + static_cast<std::ptrdiff_t>(r) * d_;
        for (int c = 0; c < d_; ++c) output[c] += sums.sum[r] * value.mean[static_cast<size_t>(c)];
      }
    }
    return sums;
  }

  const KernelContext& context_;
  const AttendParams& params_;
  const AttendKernels& kernels_;
  const AttendPlan& plan_;
  const int d_;
};

}  // namespace

void RunAttend(const KernelContext& context, const AttendParams& params, const AttendKernels& kernels, const AttendPlan& plan) {
  AttendRun(context, params, kernels, plan).Run();
}

}  // namespace oscar::kernels
