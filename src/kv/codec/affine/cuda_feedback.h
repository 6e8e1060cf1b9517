// Demotion of BF16 pages by the error-feedback encoder of int2:balanced and int1:balanced (quality.md 4 and 5) on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/kv/kernels/cuda/device_status.h"
#include "src/kv/kernels/cuda/separate_space.h"

namespace oscar::affine {

inline constexpr int kMostFeedbackJobs = 16;

// One side of one layer. A mean turns with the page where page_mean is given: TurnMean of src/kv/transform/turning_mean.h.
struct FeedbackSide {
  kernels::cuda::HeadMatrices matrices;          // A, never null
  kernels::cuda::HeadVectors mean;               // constant, or null
  kernels::cuda::HeadVectors page_mean;          // of page 0, or null
  kernels::cuda::HeadMatrices metric, feedback;  // ErrorFeedback::metric, ::feedback
  kernels::cuda::HeadVectors inverse_diagonal;
  int32_t effort;  // 0 .. 2
};

struct FeedbackJob {
  int32_t row_page;    // BF16 page id
  int32_t code_page;   // encoded page id
  int32_t page_index;  // position / 64
};

struct FeedbackPagesParams {
  const uint8_t* row_pool;  // layer base, as DemotePagesParams
  uint8_t* code_pool;
  const float* phases;  // [pages, d] of oscar/kernels.h PagePhases, or null
  kernels::cuda::DeviceStatus* status;
  int32_t layer;
  int32_t kv_heads;
  int32_t turning_pairs;  // rotary pairs; RotaryEmbedding::angles
  int32_t halves;         // RotaryEmbedding::halves
  FeedbackJob jobs[kMostFeedbackJobs];
  FeedbackSide sides[2];  // key, value
};

// Asks for the kernels' shared memory, once per process and device, before the first launch.
cudaError_t PrepareFeedback();
// bits of a code: 1 or 2. cudaErrorInvalidValue for others, a head_dim without a kernel or a number of jobs that is not 0 ..
// kMostFeedbackJobs.
cudaError_t LaunchFeedback(int head_dim, const FeedbackPagesParams& params, int num_jobs,
                           cudaStream_t stream, int bits = 2);

}  // namespace oscar::affine
