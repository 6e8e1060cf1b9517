#include "src/kv/codec/affine/cuda_feedback.h"

#include "src/kv/codec/affine/feedback.cuh"

namespace oscar::affine {
namespace {

template <int D, int kBits>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(feedback::FeedbackKernel<D, kBits>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(sizeof(feedback::Shared<D>)));
}

template <int D>
cudaError_t Launch(const FeedbackPagesParams& params, int num_jobs, cudaStream_t stream, int bits) {
  const dim3 grid(2 * num_jobs, params.kv_heads);
  constexpr size_t kShared = sizeof(feedback::Shared<D>);
  if (bits == 1) {
    feedback::FeedbackKernel<D, 1><<<grid, feedback::kThreads, kShared, stream>>>(params);
  } else {
    feedback::FeedbackKernel<D, 2><<<grid, feedback::kThreads, kShared, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t PrepareFeedback() {
  for (const cudaError_t status :
       {Prepare<64, 1>(), Prepare<128, 1>(), Prepare<192, 1>(), Prepare<256, 1>(), Prepare<64, 2>(),
        Prepare<128, 2>(), Prepare<192, 2>(), Prepare<256, 2>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t LaunchFeedback(int head_dim, const FeedbackPagesParams& params, int num_jobs,
                           cudaStream_t stream, int bits) {
  if (num_jobs == 0) return cudaSuccess;
  if (num_jobs < 0 || num_jobs > kMostFeedbackJobs || (bits != 1 && bits != 2))
    return cudaErrorInvalidValue;
  switch (head_dim) {
    case 64:
      return Launch<64>(params, num_jobs, stream, bits);
    case 128:
      return Launch<128>(params, num_jobs, stream, bits);
    case 192:
      return Launch<192>(params, num_jobs, stream, bits);
    case 256:
      return Launch<256>(params, num_jobs, stream, bits);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::affine
