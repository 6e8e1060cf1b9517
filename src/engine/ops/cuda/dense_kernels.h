// Kernels of a forward pass that touch no cache: f32 rows, bf16 matrices, f32 vectors. All run in the given stream, allocate
// nothing and wait for nothing. Rows are without gaps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace oscar::engine {

// Products with few rows read each matrix once and keep the activations in f32: above this number a library multiplies.
inline constexpr int kMostVectorRows = 4;

// One matrix of a product: out[m][n] = sum_k x[m][k] W[n][k] + bias[n] + residual[m][n].
struct MatrixJob {
  const uint16_t* matrix;  // bf16 [out_width, in_width], or Fp8Bytes of it
  const float* bias;       // [out_width] or null
  const float* residual;   // [num_rows, out_width] or null; may be `out`
  float* out;              // [num_rows, out_width]
  int32_t out_width;
};
inline constexpr int kMostMatrixJobs = 3;
// Up to three products of the same rows.
struct VectorProductParams {
  const float* x;  // [num_rows, in_width], 16-byte aligned
  int32_t num_rows;  // 1 .. kMostVectorRows
  int32_t in_width;  // a multiple of 8
  int32_t num_jobs;
  MatrixJob jobs[kMostMatrixJobs];
  const float* gain;  // [in_width]: rows are normalised first, as by LaunchRmsNorm; or null
  float epsilon;
  bool is_fp8;  // the matrices are codes with scales (fp8_kernels.h); in_width a multiple of 16
};
cudaError_t LaunchVectorProducts(const VectorProductParams& params, cudaStream_t stream);

// out = silu(x G^T) * (x U^T): jobs[0] is G with the output, jobs[1] is U; no bias, no residual.
cudaError_t LaunchGatedVectorProduct(const VectorProductParams& params, cudaStream_t stream);

// Rows of a bf16 table by index, as f32.
struct EmbedParams {
  const uint16_t* table;  // [rows, width]
  const int32_t* tokens;  // [num_rows]
  float* out;
  int32_t num_rows, width;
};
cudaError_t LaunchEmbed(const EmbedParams& params, cudaStream_t stream);

// Each group of `width` values over its root mean square, times gain.
struct RmsNormParams {
  const float* x;
  const float* gain;  // [width]
  float* out;
  int32_t num_groups, width;
  float epsilon;
};
cudaError_t LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream);

// Rows of heads to turn, normalised first where there is a gain.
struct RopeJob {
  const float* x;
  float* out;         // may be x
  const float* gain;  // [head_dim] or null
  float epsilon;
  int32_t num_heads;
};
inline constexpr int kMostRopeJobs = 2;
struct RopeLaunchParams {
  const float2* turns;  // of LaunchTurns
  int32_t num_rows, head_dim, pairs;
  bool halves;  // pairs (i, i + pairs) instead of (2 i, 2 i + 1)
  int32_t num_jobs;
  RopeJob jobs[kMostRopeJobs];
};
cudaError_t LaunchRope(const RopeLaunchParams& params, cudaStream_t stream);

// Cosine and sine of each pair at each position, once per step for all layers.
struct TurnsParams {
  const int32_t* positions;  // [num_rows]
  const float* angles;       // [pairs] radians per position
  float2* turns;             // [num_rows, pairs]
  int32_t num_rows, pairs;
  float magnitude;  // factor on both
};
cudaError_t LaunchTurns(const TurnsParams& params, cudaStream_t stream);

// Elementwise, `count` values. bias: [width], count a multiple of width.
cudaError_t LaunchAdd(const float* a, const float* b, float* out, int64_t count, cudaStream_t stream);
cudaError_t LaunchAddBias(const float* x, const float* bias, float* out, int64_t count, int width, cudaStream_t stream);
cudaError_t LaunchSwiGlu(const float* gate, const float* up, float* out, int64_t count, cudaStream_t stream);
cudaError_t LaunchRoundToBf16(const float* x, uint16_t* out, int64_t count, cudaStream_t stream);

// bf16 values of a normal distribution with this standard deviation.
cudaError_t LaunchRandomNormal(uint16_t* out, int64_t count, float deviation, uint64_t seed, cudaStream_t stream);

// The largest logit of each row as one number: its bits, ordered as unsigned numbers are, above the complement of its index, so that the
// lowest index wins at equals; with one that is not finite, kNotFiniteLogit above the complement of the index of the first such.
inline constexpr uint32_t kNotFiniteLogit = 0xFFFFFFFF;
struct BestLogitsParams {
  const float* logits;  // [num_rows, width]
  uint64_t* best;       // [num_rows], zeros before
  int32_t num_rows, width;
};
cudaError_t LaunchBestLogits(const BestLogitsParams& params, cudaStream_t stream);

struct GatherParams {
  const float* x;
  const int32_t* rows;  // [num_rows]
  float* out;
  int32_t num_rows, width;
};
cudaError_t LaunchGather(const GatherParams& params, cudaStream_t stream);

}  // namespace oscar::engine
