#include "src/kv/kernels/cuda/separate_space.h"

#include <cuda_bf16.h>

#include "src/kv/kernels/cuda/ptx/launch.cuh"
#include "src/kv/kernels/cuda/row_layout.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kStoreThreads = 128;

__device__ __forceinline__ uint32_t RoundPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// One CTA per token; a thread moves 8 values at a time.
__global__ void __launch_bounds__(kStoreThreads)
    StoreRowsKernel(const __grid_constant__ StoreRowsParams params) {
  ptx::WaitForPredecessors();
  ptx::LaunchDependents();
  const int token = static_cast<int>(blockIdx.x), d = params.head_dim, pieces = d / 8;
  const int position = params.first_position + token, slot = position % 64;
  const int64_t page = params.pages[position / 64 - params.first_position / 64];
  for (int i = threadIdx.x; i < 2 * params.kv_heads * pieces; i += kStoreThreads) {
    const int side = i / (params.kv_heads * pieces), head = i / pieces % params.kv_heads,
              dim = i % pieces * 8;
    const DeviceRows& rows = side == 0 ? params.keys : params.values;
    const float4* x = reinterpret_cast<const float4*>(rows.data + token * rows.token_stride +
                                                      head * rows.head_stride + dim);
    const float4 low = x[0], high = x[1];
    const uint4 words = make_uint4(RoundPair(low.x, low.y), RoundPair(low.z, low.w),
                                   RoundPair(high.x, high.y), RoundPair(high.z, high.w));
    uint8_t* block = params.row_pool + (page * params.kv_heads + head) * Bf16BlockBytes(d);
    *reinterpret_cast<uint4*>(
        block + (side == 0 ? Bf16KeyOffset(d, slot, dim) : Bf16ValueOffset(d, slot, dim))) = words;
    // An exponent of ones carries into the place of the sign.
    uint32_t not_finite = 0;
    for (const uint32_t word : {words.x, words.y, words.z, words.w})
      not_finite |= (word & 0x7F807F80u) + 0x00800080u;
    if ((not_finite & 0x80008000u) != 0)
      ReportNonFinite(params.status, {1, params.layer, head, token, slot, side, {}});
  }
}

// A CTA multiplies up to 8 rows of one KV head with its matrix: 4 D threads, a quarter of the sum each.
constexpr int kRows = 8, kParts = 4;
template <int D>
struct ProductShared {
  float rows[kRows][D];
  float sums[kParts][kRows][D];
};

// The matrix on its way to L2 while the kernel before ends.
template <int D>
__device__ __forceinline__ void PrefetchMatrix(const HeadMatrices& matrices) {
  if (matrices.data == nullptr) return;
  const char* matrix =
      reinterpret_cast<const char*>(matrices.data + blockIdx.y * matrices.head_stride);
  for (int i = threadIdx.x; i < D * D * 4 / 128; i += kParts * D)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(matrix + 128 * i));
}

template <int D>
__device__ __forceinline__ void MultiplyRows(const float* matrix, ProductShared<D>& shared) {
  const int column = threadIdx.x % D, part = threadIdx.x / D;
  float sums[kRows] = {};
#pragma unroll 16
  for (int j = part * (D / kParts); j < (part + 1) * (D / kParts); ++j) {
    const float m = __ldg(matrix + j * D + column);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = fmaf(shared.rows[r][j], m, sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) shared.sums[part][r][column] = sums[r];
  __syncthreads();
}
template <int D>
__device__ __forceinline__ float ProductAt(const ProductShared<D>& shared, int row, int column) {
  return (shared.sums[0][row][column] + shared.sums[1][row][column]) +
         (shared.sums[2][row][column] + shared.sums[3][row][column]);
}

// Row i of a KV head: token i / group, query head i % group of its group.
template <class Params>
__device__ __forceinline__ bool FindRow(const Params& params, int i, int64_t& token, int& head) {
  if (i >= params.num_tokens * params.group) return false;
  token = i / params.group;
  head = static_cast<int>(blockIdx.y) * params.group + i % params.group;
  return true;
}

template <int D>
__global__ void __launch_bounds__(kParts* D)
    SplitQueriesKernel(const __grid_constant__ SplitQueriesParams params) {
  if (params.in_code_space != nullptr) PrefetchMatrix<D>(params.matrices);
  // In this order: attention reads encoded pages as soon as this is called, and a demotion may be running.
  ptx::WaitForPredecessors();
  ptx::LaunchDependents();
  __shared__ ProductShared<D> shared;
  const int column = threadIdx.x % D, part = threadIdx.x / D;
  const int first = static_cast<int>(blockIdx.x) * kRows, num_heads = params.kv_heads * params.group;
  for (int r = part; r < kRows; r += kParts) {
    int64_t token;
    int head;
    float x = 0.0f;
    if (FindRow(params, first + r, token, head)) {
      x = params.queries.data[token * params.queries.token_stride +
                              head * params.queries.head_stride + column];
      params.raw[(token * num_heads + head) * D + column] =
          __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    shared.rows[r][column] = x;
  }
  if (params.in_code_space == nullptr) return;
  __syncthreads();
  const bool is_identity = params.matrices.data == nullptr;
  if (!is_identity)
    MultiplyRows<D>(params.matrices.data + blockIdx.y * params.matrices.head_stride, shared);
  for (int r = part; r < kRows; r += kParts) {
    int64_t token;
    int head;
    if (!FindRow(params, first + r, token, head)) continue;
    const float y = is_identity ? shared.rows[r][column] : ProductAt<D>(shared, r, column);
    params.in_code_space[(token * num_heads + head) * D + column] =
        __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
}

// The encoded parts of a row joined, in code space: value at `column`; lse gets their mass.
__device__ __forceinline__ float JoinCodeParts(const JoinSpacesParams& params, int64_t row,
                                               int column, float& lse) {
  const int64_t num_rows = static_cast<int64_t>(params.num_tokens) * params.kv_heads * params.group;
  float top = -__builtin_huge_valf();
  for (int p = 0; p < params.num_code_parts; ++p)
    top = fmaxf(top, params.code_lses[p * num_rows + row]);
  float sum = 0.0f, total = 0.0f;
  for (int p = 0; p < params.num_code_parts; ++p) {
    const float part_lse = params.code_lses[p * num_rows + row];
    if (part_lse == -__builtin_huge_valf()) continue;
    const float weight = expf(part_lse - top);
    total += weight;
    sum = fmaf(weight, params.code_outputs[(p * num_rows + row) * params.head_dim + column], sum);
  }
  lse = total > 0.0f ? top + logf(total) : top;
  return total > 0.0f ? sum / total : 0.0f;
}

// q . mu_K of a row; by one warp.
__device__ __forceinline__ float KeyMeanScore(const JoinSpacesParams& params, int64_t token,
                                              int head, int lane) {
  const float* query = params.queries.data + token * params.queries.token_stride +
                       head * params.queries.head_stride;
  const float* mean = params.key_mean.data + blockIdx.y * params.key_mean.head_stride;
  float sum = 0.0f;
  for (int i = lane; i < params.head_dim; i += 32) sum = fmaf(query[i], mean[i], sum);
  for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
  return sum;
}

template <int D>
__global__ void __launch_bounds__(kParts* D)
    JoinSpacesKernel(const __grid_constant__ JoinSpacesParams params) {
  PrefetchMatrix<D>(params.matrices);
  ptx::WaitForPredecessors();
  __shared__ ProductShared<D> shared;
  __shared__ float lses[kRows], mean_scores[kRows];
  const int column = threadIdx.x % D, part = threadIdx.x / D, warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  const int first = static_cast<int>(blockIdx.x) * kRows, num_heads = params.kv_heads * params.group;
  int64_t token;
  int head;
  if (warp < kRows) {
    float score = 0.0f;
    if (params.key_mean.data != nullptr && FindRow(params, first + warp, token, head))
      score = params.scale * KeyMeanScore(params, token, head, lane);
    if (lane == 0) mean_scores[warp] = score;
  }
  for (int r = part; r < kRows; r += kParts) {
    float lse = -__builtin_huge_valf(), x = 0.0f;
    if (FindRow(params, first + r, token, head))
      x = JoinCodeParts(params, token * num_heads + head, column, lse);
    shared.rows[r][column] = x;
    if (column == 0) lses[r] = lse;
  }
  __syncthreads();
  const bool is_identity = params.matrices.data == nullptr;
  if (!is_identity)
    MultiplyRows<D>(params.matrices.data + blockIdx.y * params.matrices.head_stride, shared);
  // Not before: the next kernel fills the memory system with its weights, and the matrix would come late.
  ptx::LaunchDependents();
  for (int r = part; r < kRows; r += kParts) {
    if (!FindRow(params, first + r, token, head)) continue;
    const int64_t row = token * num_heads + head;
    float code = is_identity ? shared.rows[r][column] : ProductAt<D>(shared, r, column);
    if (params.value_mean.data != nullptr)
      code += params.value_mean.data[blockIdx.y * params.value_mean.head_stride + column];
    const float code_lse = lses[r] + mean_scores[r], row_lse = params.row_lses[row];
    const float top = fmaxf(code_lse, row_lse);
    const float code_weight = code_lse == -__builtin_huge_valf() ? 0.0f : expf(code_lse - top);
    const float row_weight = row_lse == -__builtin_huge_valf() ? 0.0f : expf(row_lse - top);
    float sum = code_weight > 0.0f ? code_weight * code : 0.0f;
    if (row_weight > 0.0f) sum = fmaf(row_weight, params.row_outputs[row * D + column], sum);
    const float total = code_weight + row_weight;
    params.out[token * params.out_token_stride + head * params.out_head_stride + column] =
        total > 0.0f ? sum / total : total;
  }
}

template <class Launch>
cudaError_t ForHeadDim(int head_dim, const Launch& launch) {
  switch (head_dim) {
    case 64:
      return launch.template operator()<64>();
    case 128:
      return launch.template operator()<128>();
    case 192:
      return launch.template operator()<192>();
    case 256:
      return launch.template operator()<256>();
    default:
      return cudaErrorInvalidValue;
  }
}

// One launch whose start overlaps the end of its predecessor.
template <class Params>
cudaError_t LaunchOverlapped(void (*kernel)(Params), dim3 grid, int threads, const Params& params,
                             cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <class Params>
dim3 GridOf(const Params& params) {
  return dim3((params.num_tokens * params.group + kRows - 1) / kRows, params.kv_heads);
}

}  // namespace

cudaError_t LaunchStoreRows(const StoreRowsParams& params, int num_tokens, cudaStream_t stream) {
  if (num_tokens == 0) return cudaSuccess;
  if (num_tokens < 0 || params.kv_heads < 1 || params.head_dim % 64 != 0 ||
      params.first_position % 64 + num_tokens > 64 * kMostStoredPages) {
    return cudaErrorInvalidValue;
  }
  return LaunchOverlapped<StoreRowsParams>(StoreRowsKernel, dim3(num_tokens), kStoreThreads, params, stream);
}

cudaError_t LaunchSplitQueries(const SplitQueriesParams& params, cudaStream_t stream) {
  if (params.num_tokens == 0) return cudaSuccess;
  return ForHeadDim(params.head_dim, [&]<int D>() {
    return LaunchOverlapped<SplitQueriesParams>(SplitQueriesKernel<D>, GridOf(params), kParts * D, params,
                                                stream);
  });
}

cudaError_t LaunchJoinSpaces(const JoinSpacesParams& params, cudaStream_t stream) {
  if (params.num_tokens == 0) return cudaSuccess;
  return ForHeadDim(params.head_dim, [&]<int D>() {
    return LaunchOverlapped<JoinSpacesParams>(JoinSpacesKernel<D>, GridOf(params), kParts * D, params, stream);
  });
}

}  // namespace oscar::kernels::cuda
