// How DeviceVerbs encodes pages: in the stream of the step, or ahead of it beside the stream.
#include <algorithm>

#include "src/base/status_macros.h"
#include "src/kv/cache/device_verbs_cuda.h"
#include "src/kv/codec/affine/cuda_demote.h"
#include "src/kv/codec/affine/cuda_feedback.h"

namespace oscar::cache {

using cuda::FromCuda;

namespace {
uint8_t* Bytes(std::byte* pages) { return reinterpret_cast<uint8_t*>(pages); }
}  // namespace

Status DeviceVerbs::MakeSideStreams() {
  constexpr std::size_t kSideStreams = 8;
  if (forked_ == nullptr) OSCAR_TRY(FromCuda(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "event"));
  while (sides_.size() < kSideStreams) {
    SideStream& side = sides_.emplace_back();
    OSCAR_TRY(FromCuda(cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking), "stream"));
    OSCAR_TRY(FromCuda(cudaEventCreateWithFlags(&side.ended, cudaEventDisableTiming), "event"));
  }
  return {};
}

Result<bool> DeviceVerbs::DemoteAhead(const KernelContext& context, std::span<const DemoteParams> layers) {
  OSCAR_TRY(LoadPhases(context));
  OSCAR_TRY(MakeSideStreams());
  OSCAR_TRY(FromCuda(cudaEventRecord(forked_, stream_), "event"));
  for (const SideStream& side : sides_) OSCAR_TRY(FromCuda(cudaStreamWaitEvent(side.stream, forked_), "event"));
  demotes_ahead_ = true;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    // The list of pages of a min-max encoder is one place on the device: its launches keep their order.
    OSCAR_TRY(LaunchDemotion(context, layers[i], sides_[constants_.uses_feedback() ? i % sides_.size() : 0].stream));
  }
  return true;
}

Status DeviceVerbs::JoinDemotions() {
  if (!demotes_ahead_) return {};
  for (const SideStream& side : sides_) {
    OSCAR_TRY(FromCuda(cudaEventRecord(side.ended, side.stream), "event"));
    OSCAR_TRY(FromCuda(cudaStreamWaitEvent(stream_, side.ended), "event"));
  }
  demotes_ahead_ = false;
  return {};
}

Status DeviceVerbs::Demote(const KernelContext& context, const DemoteParams& params) {
  OSCAR_TRY(JoinDemotions());
  return LaunchDemotion(context, params, stream_);
}

Status DeviceVerbs::LaunchDemotion(const KernelContext& context, const DemoteParams& params, cudaStream_t stream) {
  const LayerConstants& constants = constants_.layer(params.layer);
  is_unverified_ = true;
  if (!constants_.uses_feedback()) {
    std::vector<kernels::cuda::DemoteJob> jobs;
    for (const DemoteParams::Page& page : params.pages) jobs.push_back({page.bf16_page, page.encoded_page});
    OSCAR_TRY(jobs_.Upload(jobs, stream));
    kernels::cuda::DemotePagesParams demote = {};
    demote.row_pool = Bytes(params.storage.bf16_pages);
    demote.code_pool = Bytes(params.storage.encoded_pages);
    demote.jobs = jobs_.data();
    demote.status = status_.data();
    demote.kv_heads = shape_.num_kv_heads;
    std::copy_n(constants.min_max, 2, demote.sides);
    demote.first_layer = params.layer;
    demote.bits = bits_;
    return FromCuda(affine::LaunchDemote(shape_.head_dim, demote, static_cast<int>(jobs.size()), 1, false, stream), "demotion");
  }
  OSCAR_TRY(LoadPhases(context));
  affine::FeedbackPagesParams demote = {};
  demote.row_pool = Bytes(params.storage.bf16_pages);
  demote.code_pool = Bytes(params.storage.encoded_pages);
  demote.phases = phases_.data();
  demote.status = status_.data();
  demote.layer = params.layer;
  demote.kv_heads = shape_.num_kv_heads;
  demote.turning_pairs = static_cast<int32_t>(context.profile->rotary().angles.size());
  demote.halves = context.profile->rotary().halves ? 1 : 0;
  std::copy_n(constants.feedback, 2, demote.sides);
  for (std::size_t first = 0; first < params.pages.size(); first += affine::kMostFeedbackJobs) {
    const std::size_t count = std::min<std::size_t>(affine::kMostFeedbackJobs, params.pages.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const DemoteParams::Page& page = params.pages[first + i];
      demote.jobs[i] = {page.bf16_page, page.encoded_page, page.page_index};
    }
    OSCAR_TRY(FromCuda(affine::LaunchFeedback(shape_.head_dim, demote, static_cast<int>(count), stream, bits_), "demotion"));
  }
  return {};
}

}  // namespace oscar::cache
