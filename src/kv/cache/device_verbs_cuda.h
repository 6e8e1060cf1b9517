// DeviceVerbs: the verbs of the cache on a CUDA device, in one stream (and pages that are due, beside it), in separate spaces (method.md 6.1, online mode): BF16
// rows stay raw, queries go to code space, outputs come back from it. A batch of single queries is one decode launch in which
// every sequence stands twice, its encoded pages and its BF16 rows, joined as it ends; longer steps go through the prefill kernel.
// A batch-invariant cache takes every query through decode, with plans that are fixed by each sequence's length.
#pragma once

#include <memory>
#include <vector>

#include "oscar/kv_cache.h"
#include "src/kv/cache/kv_verbs.h"
#include "src/kv/cache/layer_constants_cuda.h"
#include "src/kv/codec/affine/cuda_decode.h"
#include "src/kv/kernels/cuda/decode_params.h"
#include "src/base/cuda_memory.h"
#include "src/kv/kernels/cuda/device_status.h"

namespace oscar::cache {

class DeviceVerbs final : public KvVerbs {
 public:
  // kUnsupported for a method or shape without device kernels; kResourceExhausted, kInternal from CUDA.
  static Result<std::unique_ptr<DeviceVerbs>> Create(const KvMethod& method, const CodecProfile& profile,
                                                     const KvCacheConfig& config, cudaStream_t stream);
  ~DeviceVerbs() override;

  // Rows, queries and outputs are device pointers. Errors of values come from Verify.
  Status Append(const KernelContext& context, const AppendParams& params) override;
  Status Demote(const KernelContext& context, const DemoteParams& params) override;
  Result<bool> DemoteAhead(const KernelContext& context, std::span<const DemoteParams> layers) override;
  Status Attend(const KernelContext& context, const AttendParams& params) override;
  Result<uint64_t> PrepareStep(const KernelContext& context, const AttendParams& params) override;
  Status AttendStep(const KernelContext& context, const AppendParams& append, const AttendParams& attend, const HeadTurn& turn) override;
  void NoteReplay() override { is_unverified_ = true; }
  std::size_t AttendWorkspaceBytes(const KernelContext& /*context*/, const AttendParams& /*params*/) override { return 0; }

  Result<PageMemory> AllocatePages(std::size_t bytes) override;
  void CopyPage(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Status ReadPage(const std::byte* page, std::span<std::byte> out) override;
  Status WritePage(std::byte* page, std::span<const std::byte> bytes) override;
  std::string_view page_layout() const override { return "cuda"; }
  Status ReadEncodedPage(const KernelContext& context, const std::byte* page, std::span<std::byte> out) override;
  Status Verify(const KernelContext& context) override;

 private:
  // Single queries of sequences [first, first + count), or one sequence of several; their rows start at `row`.
  struct Run {
    int first = 0, count = 0, row = 0, num_rows = 0;
  };

  DeviceVerbs(cudaStream_t stream, int bits);
  Status Load(const CodecProfile& profile, const KvCacheConfig& config);
  Status LoadPhases(const KernelContext& context);
  Status LaunchDemotion(const KernelContext& context, const DemoteParams& params, cudaStream_t stream);
  Status MakeSideStreams();
  // Lets the stream wait for what DemoteAhead began.
  Status JoinDemotions();
  Status AttendDecode(const KernelContext& context, const AttendParams& params, const Run& run);
  // Every query as a decode step of its own, several in a launch.
  Status AttendEach(const KernelContext& context, const AttendParams& params);
  // The rows of a planned decode run before its attention; keys and values without data: they are in their pages already.
  Status PrepareRows(const AttendParams& params, const Run& run, const AppendParams& append, const HeadTurn& turn);
  Status LaunchAttention(const AttendParams& params, const Run& run);
  Status AttendPrefill(const KernelContext& context, const AttendParams& params, const Run& run);
  // Uploads tables and plan of a decode run unless they are those of the last call: all layers of a step share them.
  Status PlanDecodeRun(const AttendParams& params, const Run& run);
  // Of prefill runs.
  Status SplitQueries(const AttendParams& params, const Run& run, bool has_encoded);
  Status JoinSpaces(const AttendParams& params, const Run& run, int num_code_parts);
  Status AddPageBeta(const AttendParams& params, int num_rows, int num_pages, const uint16_t* raw_queries);
  // Queries and scores of the means of a decode run of so many rows.
  Status GrowDecode(std::size_t num_rows);
  Status GrowPageBeta(int num_rows, int num_pages);
  Status GrowOutputs(std::size_t num_rows);

  cudaStream_t stream_;
  const uint64_t id_;  // of no other in this process
  const int bits_;     // of a code
  KvShape shape_;
  ProfileConstants constants_;
  const affine::DecodeKernel* kernel_ = nullptr;
  int num_ctas_ = 0;
  bool is_invariant_ = false;  // KvCacheConfig::batch_invariant
  bool may_encode_ = false;    // whether sequences can be long enough for encoded pages

  cuda::DeviceArray<kernels::cuda::DeviceStatus> status_;
  bool is_unverified_ = false;
  cuda::DeviceArray<kernels::cuda::DemoteJob> jobs_;
  // A page of one layer has few CTAs: several layers are encoded at a time.
  struct SideStream {
    cudaStream_t stream = nullptr;
    cudaEvent_t ended = nullptr;
  };
  std::vector<SideStream> sides_;  // made by the first DemoteAhead
  cudaEvent_t forked_ = nullptr;
  bool demotes_ahead_ = false;
  cuda::DeviceArray<float> phases_;  // [phase_pages_, d], as PagePhases
  cuda::DeviceArray<float2> turns_;  // [d / 2, phase_pages_]
  int phase_pages_ = 0;

  // Of the decode run planned last.
  struct Plan {
    std::vector<int32_t> tables;  // what was planned: positions, pages of the newest rows, then the tables as on the device
    int code_stride = 0, row_stride = 0;
    std::size_t code_table = 0, row_table = 0;  // where they start
    bool has_encoded = false;
  } plan_;
  cuda::DeviceArray<int32_t> tables_, prefill_tables_;
  std::vector<int32_t> uploaded_prefill_tables_;
  cuda::DeviceArray<kernels::cuda::DecodeStart> starts_;
  cuda::DeviceArray<kernels::cuda::DecodeItem> items_;
  cuda::DeviceArray<float> partials_, partial_stats_;
  cuda::DeviceArray<int32_t> pair_counters_;

  // queries_: in code space, then raw; beta_: of the rows of queries_. Outputs and lses: parts of rows.
  cuda::DeviceArray<uint16_t> queries_;
  cuda::DeviceArray<float> outputs_, lses_, beta_, page_beta_;
};

}  // namespace oscar::cache
