#include "src/kv/codec/affine/cuda_feedback.h"

#include "src/kv/codec/affine/feedback.cuh"

namespace oscar::affine {
namespace {

template <int D>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(feedback::FeedbackKernel<D>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(sizeof(feedback::Shared<D>)));
}

template <int D>
cudaError_t Launch(const FeedbackPagesParams& params, int num_jobs, cudaStream_t stream) {
  feedback::FeedbackKernel<D><<<dim3(2 * num_jobs, params.kv_heads), feedback::kThreads,
                                sizeof(feedback::Shared<D>), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t PrepareFeedback() {
  for (const cudaError_t status : {Prepare<64>(), Prepare<128>(), Prepare<192>(), Prepare<256>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t LaunchFeedback(int head_dim, const FeedbackPagesParams& params, int num_jobs,
                           cudaStream_t stream) {
  if (num_jobs == 0) return cudaSuccess;
  if (num_jobs < 0 || num_jobs > kMostFeedbackJobs) return cudaErrorInvalidValue;
  switch (head_dim) {
    case 64:
      return Launch<64>(params, num_jobs, stream);
    case 128:
      return Launch<128>(params, num_jobs, stream);
    case 192:
      return Launch<192>(params, num_jobs, stream);
    case 256:
      return Launch<256>(params, num_jobs, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::affine
