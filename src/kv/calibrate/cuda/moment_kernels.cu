#include "src/kv/calibrate/cuda/moment_kernels.h"

#include <cuda_bf16.h>

#include "oscar/types.h"
#include "src/kv/calibrate/attention_weights.h"

namespace oscar::calibrate {
namespace {

constexpr int kThreads = 256;
constexpr int kMostHeadDim = 256;
constexpr int kTile = 32;  // outputs of an outer product that a CTA makes, per side

unsigned GridOf(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__device__ __forceinline__ uint16_t RoundToBf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ float FromBf16(uint32_t bits) { return __uint_as_float(bits << 16); }

__global__ void FindNonFiniteKernel(const FindNonFiniteParams params) {
  const int64_t count = int64_t{params.num_tokens} * params.num_heads * params.head_dim;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int channel = static_cast<int>(i % params.head_dim);
  const int64_t row = i / params.head_dim;
  const float x = params.rows.data[row / params.num_heads * params.rows.token_stride +
                                   row % params.num_heads * params.rows.head_stride + channel];
  if ((RoundToBf16(x) & 0x7F80) == 0x7F80) atomicMin(params.first, static_cast<unsigned long long>(i));
}

__global__ void WidenRowsKernel(const WidenRowsParams params) {
  const int64_t rows = int64_t{params.num_tokens} * params.group;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * params.kv_heads * params.head_dim) return;
  const int channel = static_cast<int>(i % params.head_dim);
  const int64_t row = i / params.head_dim % rows, head = i / params.head_dim / rows;
  const int64_t token = row / params.group;
  const float x = params.rows.data[token * params.rows.token_stride +
                                   (head * params.group + row % params.group) * params.rows.head_stride + channel];
  double value = params.rounds ? FromBf16(RoundToBf16(x)) : x;
  if (params.weights != nullptr) value *= sqrt(params.weights[head * params.num_tokens + token]);
  params.out[i] = value;
}

// The grid is (tiles on and below the diagonal, heads). A thread makes 2 x 2 outputs.
__global__ void __launch_bounds__(kThreads) OuterProductsKernel(const OuterProductsParams params) {
  constexpr int kStep = 32;  // rows at once
  __shared__ double left[kStep][kTile], right[kStep][kTile];
  int tile_row = 0, tile = static_cast<int>(blockIdx.x);
  while (tile > tile_row) tile -= ++tile_row;
  const int d = params.head_dim, first_i = kTile * tile_row, first_j = kTile * tile;
  const double* rows = params.rows + static_cast<int64_t>(blockIdx.y) * params.num_rows * d;
  const int x = threadIdx.x % 16, y = static_cast<int>(threadIdx.x) / 16;
  double sums[2][2] = {};
  for (int first = 0; first < params.num_rows; first += kStep) {
    __syncthreads();
    for (int n = threadIdx.x; n < kStep * kTile; n += kThreads) {
      const int row = n / kTile, column = n % kTile;
      const bool is_row = first + row < params.num_rows;
      const double* source = rows + static_cast<int64_t>(first + row) * d;
      left[row][column] = is_row ? source[first_i + column] : 0.0;
      right[row][column] = is_row ? source[first_j + column] : 0.0;
    }
    __syncthreads();
#pragma unroll 8
    for (int row = 0; row < kStep; ++row) {
      const double a[2] = {left[row][x], left[row][x + 16]}, b[2] = {right[row][y], right[row][y + 16]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sums[i][j] = fma(a[i], b[j], sums[i][j]);
      }
    }
  }
  double* out = params.sums + static_cast<int64_t>(blockIdx.y) * d * d;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) out[(first_j + y + 16 * j) * d + first_i + x + 16 * i] += sums[i][j];
  }
}

// The sum of the CTA's values, in every thread.
__device__ __forceinline__ double SumOfCta(double value, double (&shared)[kThreads / 32]) {
  for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(~0u, value, mask);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += shared[warp];
  return sum;
}

constexpr int kScoredRows = 4;  // of a CTA: what it reads of the metric serves them all

// One thread per channel; the grid is (groups of kScoredRows rows, heads).
__global__ void __launch_bounds__(kMostHeadDim) ScoreWeightsKernel(const ScoreWeightsParams params) {
  __shared__ double x[kScoredRows][kMostHeadDim];
  __shared__ double warps[kThreads / 32];
  const int d = params.head_dim, c = threadIdx.x, first = static_cast<int>(blockIdx.x) * kScoredRows;
  const int64_t head = blockIdx.y;
  for (int n = 0; n < kScoredRows; ++n)
    x[n][c] = first + n < params.num_rows ? params.rows[(head * params.num_rows + first + n) * d + c] : 0.0;
  __syncthreads();
  double sums[kScoredRows] = {};
  const double* metric = params.metrics + head * d * d;
  for (int row = 0; row < d; ++row) {
    const double m = metric[row * d + c];
#pragma unroll
    for (int n = 0; n < kScoredRows; ++n) sums[n] = fma(x[n][row], m, sums[n]);
  }
#pragma unroll
  for (int n = 0; n < kScoredRows; ++n) {
    const double weight = SumOfCta(sums[n] * x[n][c], warps);
    if (c == 0 && first + n < params.num_rows) params.weights[head * params.num_rows + first + n] = fmax(0.0, weight);
  }
}

__global__ void __launch_bounds__(kThreads) SumWeightsKernel(const double* weights, int num_rows, double* sums) {
  __shared__ double warps[kThreads / 32];
  double sum = 0.0;
  for (int row = threadIdx.x; row < num_rows; row += kThreads) sum += weights[static_cast<int64_t>(blockIdx.x) * num_rows + row];
  sum = SumOfCta(sum, warps);
  if (threadIdx.x == 0) sums[blockIdx.x] += sum;
}

__global__ void StoreBlockKernel(const DeviceBlock block, const DeviceRows keys, const DeviceRows values, int num_tokens) {
  const int64_t row_values = int64_t{block.kv_heads} * block.head_dim;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= num_tokens * row_values) return;
  const int64_t token = i / row_values, head = i / block.head_dim % block.kv_heads, channel = i % block.head_dim;
  const uint16_t key = RoundToBf16(keys.data[token * keys.token_stride + head * keys.head_stride + channel]);
  const int64_t at = block.num_tokens * row_values + i, position = block.first_position + block.num_tokens + token;
  block.keys[at] = key;
  block.values[at] = RoundToBf16(values.data[token * values.token_stride + head * values.head_stride + channel]);
  if (position < kSinkTokens) block.sink_keys[position * row_values + i % row_values] = key;
}

__device__ __forceinline__ float Dot(const float* query, const uint16_t* key, int d) {
  float sum = 0.0f;
  for (int c = 0; c < d; c += 8) {
    const uint4 words = *reinterpret_cast<const uint4*>(key + c);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(query[c + 2 * i], FromBf16(pairs[i] & 0xFFFFu), sum);
      sum = fmaf(query[c + 2 * i + 1], __uint_as_float(pairs[i] & 0xFFFF0000u), sum);
    }
  }
  return sum;
}

// Largest value, or sum, of the CTA, in every thread.
template <bool kIsSum>
__device__ __forceinline__ float OfCta(float value, float (&shared)[kThreads / 32]) {
  for (int mask = 16; mask > 0; mask >>= 1) {
    const float other = __shfl_xor_sync(~0u, value, mask);
    value = kIsSum ? value + other : fmaxf(value, other);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float all = shared[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) all = kIsSum ? all + shared[warp] : fmaxf(all, shared[warp]);
  return all;
}

// The grid is (queries, query heads).
__global__ void __launch_bounds__(kThreads) BlockAttentionKernel(const BlockAttentionParams params) {
  __shared__ float query[kMostHeadDim], scores[kBlockTokens + kSinkTokens], warps[kThreads / 32];
  const DeviceBlock& block = params.block;
  const int in_block = params.first_in_block + kQueryStride * static_cast<int>(blockIdx.x);
  const int count = in_block - kLeastDistance;
  if (count <= 0) return;
  const int d = block.head_dim, head = static_cast<int>(blockIdx.y) / params.group;
  const float* source = params.queries.data + blockIdx.x * params.queries.token_stride + blockIdx.y * params.queries.head_stride;
  for (int c = threadIdx.x; c < d; c += kThreads) query[c] = source[c];
  __syncthreads();
  const int num_scores = in_block + params.num_sinks;
  float largest = -INFINITY;
  for (int t = threadIdx.x; t < num_scores; t += kThreads) {
    const uint16_t* keys = t < in_block ? block.keys : block.sink_keys;
    const int token = t < in_block ? t : t - in_block;
    const float score = Dot(query, keys + (static_cast<int64_t>(token) * block.kv_heads + head) * d, d) * params.scale;
    scores[t] = score;
    largest = fmaxf(largest, score);
  }
  largest = OfCta<false>(largest, warps);
  float sum = 0.0f;
  for (int t = threadIdx.x; t < num_scores; t += kThreads) {
    scores[t] = expf(scores[t] - largest);
    sum += scores[t];
  }
  sum = OfCta<true>(sum, warps);
  float* out = params.squares + (static_cast<int64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * kBlockTokens;
  for (int t = threadIdx.x; t < count; t += kThreads) {
    const float probability = scores[t] / sum;
    out[t] = probability * probability;
  }
}

// The grid is (parts of the block, KV heads), a thread per token.
__global__ void SumSquaresKernel(const BlockAttentionParams params) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), head = blockIdx.y;
  const int num_heads = params.block.kv_heads * params.group;
  float sum = params.block.mass[head * kBlockTokens + t];
  for (int query = 0; query < params.num_queries; ++query) {
    if (t >= params.first_in_block + kQueryStride * query - kLeastDistance) continue;
    for (int q = 0; q < params.group; ++q)
      sum += params.squares[(static_cast<int64_t>(query) * num_heads + head * params.group + q) * kBlockTokens + t];
  }
  params.block.mass[head * kBlockTokens + t] = sum;
}

__device__ __forceinline__ double WeightOf(const DeviceBlock& block, int head, int token) {
  const bool is_sink = block.first_position + token < kSinkTokens;
  return block.weight_floor + (is_sink ? 0.0 : static_cast<double>(block.mass[head * kBlockTokens + token]));
}

__device__ __forceinline__ double SumOfWarp(double value) {
  for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(~0u, value, mask);
  return value;
}

// One warp per pair of channels and head, its lanes along the tokens.
__global__ void BlockMeansKernel(const BlockMeansParams params) {
  const DeviceBlock& block = params.block;
  const int pair = blockIdx.x, head = blockIdx.y, d = block.head_dim;
  const int2 channels = params.channels[pair];
  double first = 0.0, second = 0.0, values[2] = {}, weights = 0.0;
  for (int t = threadIdx.x; t < block.num_tokens; t += 32) {
    const double weight = WeightOf(block, head, t);
    const int64_t row = (static_cast<int64_t>(t) * block.kv_heads + head) * d;
    const double x = weight * FromBf16(block.keys[row + channels.x]), y = weight * FromBf16(block.keys[row + channels.y]);
    double sine, cosine;
    sincos((block.first_position + t) * params.angles[pair], &sine, &cosine);
    first += x * cosine + y * sine;
    second += y * cosine - x * sine;
    for (int i = 0; i < 2; ++i) values[i] += weight * FromBf16(block.values[row + 2 * pair + i]);
    weights += weight;
  }
  first = SumOfWarp(first);
  second = SumOfWarp(second);
  for (double& value : values) value = SumOfWarp(value);
  weights = SumOfWarp(weights);
  if (threadIdx.x != 0) return;
  params.key_sums[head * d + channels.x] += first;
  params.key_sums[head * d + channels.y] += second;
  params.value_sums[head * d + 2 * pair] += values[0];
  params.value_sums[head * d + 2 * pair + 1] += values[1];
  if (pair == 0) params.weights[head] += weights;
}

// The grid is (tokens, KV heads), a thread per channel.
__global__ void CentreBlockKernel(const CentreBlockParams params) {
  const DeviceBlock& block = params.block;
  const int t = blockIdx.x, head = blockIdx.y, d = block.head_dim, c = threadIdx.x;
  const int page = (block.first_position + t) / kPageTokens - block.first_position / kPageTokens;
  const double root = sqrt(WeightOf(block, head, t));
  const int64_t from = (static_cast<int64_t>(t) * block.kv_heads + head) * d + c;
  const int64_t to = (static_cast<int64_t>(head) * block.num_tokens + t) * d + c;
  const double key_mean = params.key_means[page * params.page_stride + head * d + c];
  const double value_mean = params.value_means[head * d + c];
  params.keys[to] = root * (static_cast<double>(FromBf16(block.keys[from])) - key_mean);
  params.values[to] = root * (static_cast<double>(FromBf16(block.values[from])) - value_mean);
}

__global__ void SumBlockWeightsKernel(const DeviceBlock block, double* sums) {
  double sum = 0.0;
  for (int t = threadIdx.x; t < block.num_tokens; t += 32) sum += WeightOf(block, blockIdx.x, t);
  sum = SumOfWarp(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] += sum;
}

bool IsHeadDim(int d) { return d >= kTile && d <= kMostHeadDim && d % kTile == 0; }

}  // namespace

cudaError_t LaunchFindNonFinite(const FindNonFiniteParams& params, cudaStream_t stream) {
  const int64_t count = int64_t{params.num_tokens} * params.num_heads * params.head_dim;
  FindNonFiniteKernel<<<GridOf(count), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchWidenRows(const WidenRowsParams& params, cudaStream_t stream) {
  if (params.weights != nullptr && params.group != 1) return cudaErrorInvalidValue;
  const int64_t count = int64_t{params.num_tokens} * params.group * params.kv_heads * params.head_dim;
  WidenRowsKernel<<<GridOf(count), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchOuterProducts(const OuterProductsParams& params, cudaStream_t stream) {
  if (!IsHeadDim(params.head_dim)) return cudaErrorInvalidValue;
  const unsigned tiles = static_cast<unsigned>(params.head_dim / kTile);
  OuterProductsKernel<<<dim3(tiles * (tiles + 1) / 2, static_cast<unsigned>(params.num_heads)), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchScoreWeights(const ScoreWeightsParams& params, cudaStream_t stream) {
  if (!IsHeadDim(params.head_dim)) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((params.num_rows + kScoredRows - 1) / kScoredRows), static_cast<unsigned>(params.num_heads));
  ScoreWeightsKernel<<<grid, static_cast<unsigned>(params.head_dim), 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchSumWeights(const double* weights, int num_rows, int num_heads, double* sums, cudaStream_t stream) {
  SumWeightsKernel<<<static_cast<unsigned>(num_heads), kThreads, 0, stream>>>(weights, num_rows, sums);
  return cudaGetLastError();
}

cudaError_t LaunchStoreBlock(const DeviceBlock& block, const DeviceRows& keys, const DeviceRows& values, int num_tokens,
                             cudaStream_t stream) {
  if (num_tokens < 1 || block.num_tokens + num_tokens > kBlockTokens) return cudaErrorInvalidValue;
  StoreBlockKernel<<<GridOf(int64_t{num_tokens} * block.kv_heads * block.head_dim), kThreads, 0, stream>>>(block, keys, values, num_tokens);
  return cudaGetLastError();
}

cudaError_t LaunchBlockAttention(const BlockAttentionParams& params, cudaStream_t stream) {
  if (params.num_queries < 1 || params.first_in_block + kQueryStride * (params.num_queries - 1) > kBlockTokens ||
      params.num_sinks > kSinkTokens || !IsHeadDim(params.block.head_dim)) {
    return cudaErrorInvalidValue;
  }
  const auto heads = static_cast<unsigned>(params.block.kv_heads);
  const dim3 grid(static_cast<unsigned>(params.num_queries), heads * static_cast<unsigned>(params.group));
  BlockAttentionKernel<<<grid, kThreads, 0, stream>>>(params);
  SumSquaresKernel<<<dim3(kBlockTokens / 32, heads), 32, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchBlockMeans(const BlockMeansParams& params, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.block.head_dim / 2), static_cast<unsigned>(params.block.kv_heads));
  BlockMeansKernel<<<grid, 32, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchCentreBlock(const CentreBlockParams& params, cudaStream_t stream) {
  if (!IsHeadDim(params.block.head_dim) || params.block.num_tokens < 1) return cudaErrorInvalidValue;
  const auto heads = static_cast<unsigned>(params.block.kv_heads);
  const dim3 grid(static_cast<unsigned>(params.block.num_tokens), heads);
  CentreBlockKernel<<<grid, static_cast<unsigned>(params.block.head_dim), 0, stream>>>(params);
  SumBlockWeightsKernel<<<heads, 32, 0, stream>>>(params.block, params.weights);
  return cudaGetLastError();
}

}  // namespace oscar::calibrate
