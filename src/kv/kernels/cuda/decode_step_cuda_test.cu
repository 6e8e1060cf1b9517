// The kernels of a decode step together, as an engine calls them: plan, append and attention in one
// CUDA graph that is replayed while sequences grow, with demotions between the replays. Needs a
// GPU; label cuda.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "src/kv/codec/affine/clip.h"
#include "src/kv/codec/affine/cuda_demote.h"
#include "src/kv/kernels/cuda/cache_kernels.h"
#include "src/kv/kernels/cuda/decode_fixture.h"

namespace oscar::kernels::cuda {
namespace {

using fixture::DeviceBuffer;

constexpr int kD = 128, kHeads = 2, kGroup = 4, kRowElements = kHeads * kD, kSink = 64,
              kRecent = 256, kCtas = 60;
constexpr int kRowPages = 40, kCodePages = 60, kTableStride = 32;
constexpr size_t kOutputs = static_cast<size_t>(kHeads) * kGroup * kD;

uint16_t RandomRowValue(int sequence, int position, int side, int element) {
  const uint64_t key =
      ((static_cast<uint64_t>(sequence) * 8192 + position) * 2 + side) * 1024 + element;
  return base::Bf16FromF32(2.0f * fixture::Uniform(key) + fixture::Uniform(key + (1ull << 40)) -
                           1.5f);
}

// A batch of growing sequences; row page 0 is for rows without a sequence.
class Batch {
 public:
  Batch(const std::vector<int>& lengths, bool uses_graph)
      : num_sequences_(static_cast<int>(lengths.size())),
        uses_graph_(uses_graph),
        lengths_(lengths),
        row_pages_(lengths.size()),
        code_pages_(lengths.size()),
        row_pool_(static_cast<size_t>(kRowPages) * kHeads * Bf16BlockBytes(kD)),
        code_pool_(static_cast<size_t>(kCodePages) * kHeads * affine::device::BlockBytes(kD)),
        rows_(static_cast<size_t>(2) * kMostNewTokens * kRowElements),
        queries_(lengths.size() * kOutputs),
        pages_(kMostNewTokens),
        slots_(kMostNewTokens),
        num_tokens_(lengths.size()),
        code_table_(lengths.size() * kTableStride),
        row_table_(lengths.size() * kTableStride),
        jobs_(64),
        status_(1),
        starts_(kCtas),
        items_(MostDecodeItems(num_sequences_, kHeads, kCtas)),
        partials_(items_.size() * kGroup * kD),
        stats_(items_.size() * kGroup * 4),
        counters_(lengths.size() * kHeads),
        out_(lengths.size() * kOutputs),
        out_f32_(lengths.size() * kOutputs) {
    OSCAR_FIXTURE_CHECK(cudaStreamCreate(&stream_));
    row_pool_.Fill(0xFF);
    code_pool_.Fill(0xFF);
    status_.Fill(0);
    counters_.Fill(0);
    kernel_ = affine::FindDecodeKernel(kD, kGroup, affine::DecodeKernelKind::kNormal);
    OSCAR_FIXTURE_CHECK(affine::PrepareDecodeKernel(*kernel_));
    for (int page = kRowPages - 1; page > 0; --page) free_row_pages_.push_back(page);
    for (int page = kCodePages - 1; page >= 0; --page) free_code_pages_.push_back(page);
    for (int sequence = 0; sequence < num_sequences_; ++sequence) AppendPrompt(sequence);
    if (uses_graph_) {
      cudaGraph_t graph;
      OSCAR_FIXTURE_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      LaunchStep();
      OSCAR_FIXTURE_CHECK(cudaStreamEndCapture(stream_, &graph));
      OSCAR_FIXTURE_CHECK(cudaGraphInstantiate(&graph_, graph, 0));
      OSCAR_FIXTURE_CHECK(cudaGraphDestroy(graph));
    }
  }
  ~Batch() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }

  // One more token for every sequence that has any.
  std::vector<float> Step(int step) {
    std::vector<int32_t> pages, slots;
    std::vector<uint16_t> rows(static_cast<size_t>(2) * num_sequences_ * kRowElements), queries;
    for (int sequence = 0; sequence < num_sequences_; ++sequence) {
      const int position = lengths_[sequence];
      if (position == 0) {
        pages.push_back(0);
        slots.push_back(0);
      } else {
        ++lengths_[sequence];
        DemoteDue(sequence);  // before the append, whose page may be the one that became free
        PlaceToken(sequence, position, pages, slots);
        FillRow(sequence, position, sequence, num_sequences_, rows);
      }
      for (size_t i = 0; i < kOutputs; ++i)
        queries.push_back(RandomRowValue(sequence, 100000 + step, 0, static_cast<int>(i)));
    }
    DemoteAll();
    Upload(rows_.data(), rows);
    Upload(queries_.data(), queries);
    Upload(pages_.data(), pages);
    Upload(slots_.data(), slots);
    Upload(num_tokens_.data(), lengths_);
    Upload(code_table_.data(), Table(code_pages_));
    Upload(row_table_.data(), Table(row_pages_));
    out_f32_.Fill(0xFF);
    if (uses_graph_) {
      OSCAR_FIXTURE_CHECK(cudaGraphLaunch(graph_, stream_));
    } else {
      LaunchStep();
    }
    OSCAR_FIXTURE_CHECK(cudaStreamSynchronize(stream_));
    return out_f32_.Download();
  }

  std::vector<double> Judge() const {
    std::vector<int32_t> num_pages, num_rows;
    for (const int length : lengths_) {
      const SequenceExtent extent = ExtentOfSequence(length, kSink, kRecent);
      num_pages.push_back(extent.num_code_pages);
      num_rows.push_back(extent.num_rows);
    }
    DeviceBuffer<int32_t> pages(num_pages), rows(num_rows);
    DeviceBuffer<double> expected(out_.size());
    fixture::JudgeAttention<<<dim3(kHeads * kGroup, num_sequences_), 256>>>(
        Params(), pages.data(), rows.data(), kD, {false, expected.data(), nullptr});
    OSCAR_FIXTURE_CHECK(cudaGetLastError());
    return expected.Download();
  }
  int status() const { return status_.Download()[0].code; }
  int num_code_pages(int sequence) const { return static_cast<int>(code_pages_[sequence].size()); }

 private:
  static constexpr int kMostNewTokens = 1024;

  template <class T>
  void Upload(T* target, const std::vector<T>& source) {
    OSCAR_FIXTURE_CHECK(cudaMemcpyAsync(target, source.data(), source.size() * sizeof(T),
                                        cudaMemcpyHostToDevice, stream_));
    OSCAR_FIXTURE_CHECK(cudaStreamSynchronize(stream_));
  }
  std::vector<int32_t> Table(const std::vector<std::vector<int32_t>>& lists) const {
    std::vector<int32_t> table(lists.size() * kTableStride, 0x7FFFFFFF);
    for (size_t i = 0; i < lists.size(); ++i)
      std::copy(lists[i].begin(), lists[i].end(), table.begin() + i * kTableStride);
    return table;
  }
  // Row pages in the order of positions: the sink, then the recent ones.
  void PlaceToken(int sequence, int position, std::vector<int32_t>& pages,
                  std::vector<int32_t>& slots) {
    if (position % 64 == 0) {
      row_pages_[sequence].push_back(free_row_pages_.back());
      free_row_pages_.pop_back();
    }
    pages.push_back(row_pages_[sequence].back());
    slots.push_back(position % 64);
  }
  // keys, then values, of token `index` of `count`.
  static void FillRow(int sequence, int position, int index, int count,
                      std::vector<uint16_t>& rows) {
    for (int side = 0; side < 2; ++side) {
      for (int i = 0; i < kRowElements; ++i) {
        rows[(static_cast<size_t>(side) * count + index) * kRowElements + i] =
            RandomRowValue(sequence, position, side, i);
      }
    }
  }
  // Pages of a sequence that its newest token no longer sees as rows.
  void DemoteDue(int sequence) {
    const int due = ExtentOfSequence(lengths_[sequence], kSink, kRecent).num_code_pages;
    while (num_code_pages(sequence) < due) {
      auto& own = row_pages_[sequence];
      due_.push_back({own[kSink / 64], free_code_pages_.back()});
      code_pages_[sequence].push_back(free_code_pages_.back());
      free_code_pages_.pop_back();
      free_row_pages_.insert(free_row_pages_.begin(), own[kSink / 64]);
      own.erase(own.begin() + kSink / 64);
    }
  }
  void DemoteAll() {
    if (due_.empty()) return;
    Upload(jobs_.data(), due_);
    const DemotePagesParams params{
        row_pool_.data(),
        code_pool_.data(),
        0,
        0,
        jobs_.data(),
        status_.data(),
        kHeads,
        {{affine::ClipIndex(0.96f, kD)}, {affine::ClipIndex(0.92f, kD)}}};
    OSCAR_FIXTURE_CHECK(
        affine::LaunchDemote(kD, params, static_cast<int>(due_.size()), 1, false, stream_));
    due_.clear();
  }
  void AppendPrompt(int sequence) {
    const int length = lengths_[sequence];
    if (length == 0) return;
    std::vector<int32_t> pages, slots;
    std::vector<uint16_t> rows(static_cast<size_t>(2) * length * kRowElements);
    for (int position = 0; position < length; ++position) {
      PlaceToken(sequence, position, pages, slots);
      FillRow(sequence, position, position, length, rows);
    }
    Upload(rows_.data(), rows);
    Upload(pages_.data(), pages);
    Upload(slots_.data(), slots);
    OSCAR_FIXTURE_CHECK(LaunchAppend(Rows(length), length, stream_));
    DemoteDue(sequence);
    DemoteAll();
    OSCAR_FIXTURE_CHECK(cudaStreamSynchronize(stream_));
  }
  AppendParams Rows(int count) const {
    return {rows_.data(),   rows_.data() + static_cast<size_t>(count) * kRowElements,
            kRowElements,   pages_.data(),
            slots_.data(),  row_pool_.data(),
            status_.data(), 0,
            kHeads,         kD};
  }
  DecodeParams Params() const {
    DecodeParams params{};
    params.queries = queries_.data();
    params.code_pool = code_pool_.data();
    params.row_pool = row_pool_.data();
    params.code_table = code_table_.data();
    params.row_table = row_table_.data();
    params.code_table_stride = params.row_table_stride = kTableStride;
    params.starts = starts_.data();
    params.items = items_.data();
    params.partials = partials_.data();
    params.partial_stats = stats_.data();
    params.pair_counters = counters_.data();
    params.out = out_.data();
    params.out_f32 = out_f32_.data();
    params.kv_heads = kHeads;
    params.group = kGroup;
    params.kappa = 1.4426950408889634f / std::sqrt(static_cast<float>(kD));
    return params;
  }
  void LaunchStep() {
    OSCAR_FIXTURE_CHECK(LaunchPlan({num_tokens_.data(), num_sequences_, kHeads, kD, kCtas, kSink,
                                    kRecent, 300'000'000, starts_.data(), items_.data()},
                                   stream_));
    OSCAR_FIXTURE_CHECK(LaunchAppend(Rows(num_sequences_), num_sequences_, stream_));
    OSCAR_FIXTURE_CHECK(affine::LaunchDecode(*kernel_, Params(), kCtas, true, stream_));
  }

  const int num_sequences_;
  const bool uses_graph_;
  std::vector<int32_t> lengths_;
  std::vector<std::vector<int32_t>> row_pages_, code_pages_;
  std::vector<int32_t> free_row_pages_, free_code_pages_;
  std::vector<DemoteJob> due_;
  DeviceBuffer<uint8_t> row_pool_, code_pool_;
  DeviceBuffer<uint16_t> rows_, queries_;
  DeviceBuffer<int32_t> pages_, slots_, num_tokens_, code_table_, row_table_;
  DeviceBuffer<DemoteJob> jobs_;
  DeviceBuffer<DeviceStatus> status_;
  DeviceBuffer<DecodeStart> starts_;
  DeviceBuffer<DecodeItem> items_;
  DeviceBuffer<float> partials_, stats_;
  DeviceBuffer<int32_t> counters_;
  DeviceBuffer<uint16_t> out_;
  DeviceBuffer<float> out_f32_;
  const affine::DecodeKernel* kernel_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

TEST(DecodeStep, AGraphOverGrowingSequencesGivesTheBitsOfEagerLaunchesAndIsAccurate) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<int> lengths = {350, 0, 383, 1, 700};
  Batch graph(lengths, true), eager(lengths, false);
  for (int step = 0; step < 400; ++step) {
    const std::vector<float> actual = graph.Step(step), other = eager.Step(step);
    ASSERT_EQ(0, std::memcmp(actual.data(), other.data(), actual.size() * sizeof(float)))
        << "step " << step;
    for (size_t i = kOutputs; i < 2 * kOutputs; ++i)
      ASSERT_EQ(actual[i], 0.0f) << "a row without a sequence";
    if (step % 21 != 0 && step != 399) continue;
    const std::vector<double> expected = graph.Judge();
    for (size_t row = 0; row < expected.size() / kD; ++row) {
      double error = 0, norm = 0;
      for (int i = 0; i < kD; ++i) {
        const double difference = actual[row * kD + i] - expected[row * kD + i];
        error += difference * difference;
        norm += expected[row * kD + i] * expected[row * kD + i];
      }
      ASSERT_LE(std::sqrt(error), 2e-3 * std::sqrt(norm)) << "step " << step << " row " << row;
    }
  }
  EXPECT_EQ(graph.status(), 0);
  EXPECT_EQ(eager.status(), 0);
  EXPECT_GE(graph.num_code_pages(0), 6);
  EXPECT_GE(graph.num_code_pages(4), 11);
}

}  // namespace
}  // namespace oscar::kernels::cuda
