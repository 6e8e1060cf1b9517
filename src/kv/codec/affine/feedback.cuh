// The error-feedback encoder on the device: the operations of feedback-inl.h in the same order, without fused ones, so that
// a row gives the same codes as on the CPU. One CTA per side of a (page, KV head); four lanes share a row, one per
// interleaved sum of a dot product.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "src/kv/codec/affine/cuda_feedback.h"
#include "src/kv/codec/affine/device_layout.h"

namespace oscar::affine::feedback {

inline constexpr int kTokens = device::kTokens, kLanes = 4, kThreads = kTokens * kLanes;
inline constexpr int kStride = kTokens + 8;  // the four lanes of eight rows read different banks

template <int D>
struct Shared {
  float centred[D][kStride];  // [dimension][row]; first y, then y - mean
  float errors[D][kStride];   // first x - mu, then the errors; at the end the words of the block
  uint8_t codes[kTokens][D];
  float mean[D];
  uint32_t pairs[kTokens];  // (scale, offset)
};

__device__ __forceinline__ float Product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float Sum(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float Difference(float a, float b) { return __fsub_rn(a, b); }

// The mean of this page of this side, as TurnMean makes it.
template <int D>
__device__ __forceinline__ void MakeMean(const FeedbackPagesParams& params,
                                         const FeedbackSide& side, int page_index,
                                         Shared<D>& shared) {
  for (int i = threadIdx.x; i < D; i += kThreads) {
    shared.mean[i] =
        side.mean.data == nullptr ? 0.0f : side.mean.data[blockIdx.y * side.mean.head_stride + i];
  }
  if (side.page_mean.data == nullptr) return;
  const float* start = side.page_mean.data + blockIdx.y * side.page_mean.head_stride;
  const float* phases = params.phases + static_cast<int64_t>(page_index) * D;
  __syncthreads();
  for (int pair = threadIdx.x; pair < D / 2; pair += kThreads) {
    const bool is_half = params.halves != 0 && pair < params.turning_pairs;
    const int a = is_half ? pair : 2 * pair, b = is_half ? pair + params.turning_pairs : a + 1;
    const double cosine = phases[pair], sine = phases[D / 2 + pair], x = start[a], y = start[b];
    shared.mean[a] = __double2float_rn(__dsub_rn(__dmul_rn(x, cosine), __dmul_rn(y, sine)));
    shared.mean[b] = __double2float_rn(__dadd_rn(__dmul_rn(x, sine), __dmul_rn(y, cosine)));
  }
}

// errors = x - mu, then centred = errors A.
template <int D>
__device__ __forceinline__ void TransformRows(const uint8_t* rows, const float* matrix,
                                              Shared<D>& shared) {
  for (int i = threadIdx.x; i < kTokens * D / 8; i += kThreads) {
    const int token = i % kTokens, dim = i / kTokens * 8;
    const uint4 words =
        *reinterpret_cast<const uint4*>(rows + device::Bf16KeyOffset(D, token, dim));
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint32_t bits = n % 2 == 0 ? pairs[n / 2] << 16 : pairs[n / 2] & 0xFFFF0000u;
      shared.errors[dim + n][token] = Difference(__uint_as_float(bits), shared.mean[dim + n]);
    }
  }
  __syncthreads();
  constexpr int kRows = 16;
  for (int item = threadIdx.x; item < D * (kTokens / kRows); item += kThreads) {
    const int column = item % D, first_row = item / D * kRows;
    float sums[kRows] = {};
#pragma unroll 2
    for (int i = 0; i < D; ++i) {
      const float m = __ldg(matrix + i * D + column);
      const float4* x = reinterpret_cast<const float4*>(&shared.errors[i][first_row]);
#pragma unroll
      for (int r = 0; r < kRows / 4; ++r) {
        const float4 four = x[r];
        sums[4 * r] = Sum(Product(m, four.x), sums[4 * r]);
        sums[4 * r + 1] = Sum(Product(m, four.y), sums[4 * r + 1]);
        sums[4 * r + 2] = Sum(Product(m, four.z), sums[4 * r + 2]);
        sums[4 * r + 3] = Sum(Product(m, four.w), sums[4 * r + 3]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) shared.centred[column][first_row + r] = sums[r];
  }
  __syncthreads();
}

// One row, by four lanes that hold the same values but for their part of a dot product.
template <int D, int kBits>
class Row {
 public:
  static constexpr float kHalf = 0.5f * ((1 << kBits) - 1);  // levels are code - kHalf
  static constexpr float kRoom = kBits == 1 ? 1.2f : 1.1f;   // kappa of quality.md 4

  __device__ Row(Shared<D>& shared, int row, int lane)
      : shared_(shared), row_(row), lane_(lane) {}

  // False when the row is not finite or beyond fp16.
  __device__ __forceinline__ bool Encode(const FeedbackSide& side) {
    const float* metric = side.metric.data + blockIdx.y * side.metric.head_stride;
    const float* inverse =
        side.inverse_diagonal.data + blockIdx.y * side.inverse_diagonal.head_stride;
    Centre();
    FitScale();
    const float fitted_scale = scale_;
    scale_ = Product(scale_, kRoom);
    reciprocal_ = __fdiv_rn(1.0f, scale_);
    if (side.effort >= 1) {
      FeedBack(side.feedback.data + blockIdx.y * side.feedback.head_stride);
    } else {
  #pragma unroll 1
    for (int i = 0; i < D; ++i) StoreLevel(i, Nearest(Centred(i)));
    }
#pragma unroll 1
    for (int sweep = 0; side.effort >= 2 && sweep < 2; ++sweep) Descend(metric, inverse);
    SetGain(metric, fitted_scale);
    return Store();
  }

 private:
  __device__ __forceinline__ float Centred(int i) const { return shared_.centred[i][row_]; }
  __device__ __forceinline__ float Error(int i) const { return shared_.errors[i][row_]; }
  __device__ __forceinline__ float Level(int i) const { return static_cast<float>(shared_.codes[row_][i]) - kHalf; }

  __device__ __forceinline__ void Centre() {
    float low = Centred(0), high = low, sum = 0.0f, spoiled = 0.0f;
#pragma unroll 4
    for (int i = 0; i < D; ++i) {
      const float y = Centred(i);
      low = fminf(low, y);
      high = fmaxf(high, y);
      sum = Sum(sum, y);
      spoiled = Sum(spoiled, Difference(y, y));  // 0, or NaN from the first value on that is not finite
    }
    spoiled_ = spoiled;
    range_ = Difference(high, low);
    mean_ = range_ > 0.0f ? Product(sum, 1.0f / D) : low;
    __syncwarp();
    for (int i = lane_; i < D; i += kLanes) shared_.centred[i][row_] = Difference(Centred(i), mean_);
    __syncwarp();
  }

  __device__ __forceinline__ float Nearest(float value) const {
    const float steps = Product(Difference(value, shift_), reciprocal_);
    const float level = Difference(floorf(Sum(steps, kHalf + 0.5f)), kHalf);
    return fminf(fmaxf(level, -kHalf), kHalf);
  }
  __device__ __forceinline__ void StoreLevel(int i, float level) {
    __syncwarp();
    if (lane_ == 0) {
      shared_.codes[row_][i] = static_cast<uint8_t>(level + kHalf);
      shared_.errors[i][row_] = Difference(Sum(shift_, Product(scale_, level)), Centred(i));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void FitScale() {
    shift_ = 0.0f;
    scale_ = range_ > 0.0f ? Product(range_, 0.6f / (2 * kHalf)) : 1.0f;
#pragma unroll 1
    for (int refit = 0; refit < 2; ++refit) {
      reciprocal_ = __fdiv_rn(1.0f, scale_);
      float sum = 0.0f, squares = 0.0f, products = 0.0f;
  #pragma unroll 1
    for (int i = 0; i < D; ++i) {
        const float y = Centred(i), level = Nearest(y);
        sum = Sum(sum, level);
        squares = Sum(squares, Product(level, level));
        products = Sum(products, Product(level, y));
      }
      const float mean_level = Product(sum, 1.0f / D);
      const float variance = Difference(squares, Product(mean_level, sum));
      if (variance > 0.0f && products > 0.0f) {
        scale_ = __fdiv_rn(products, variance);
        shift_ = Product(Product(scale_, mean_level), -1.0f);
      }
    }
  }

  // sum over j in [first, D) of values[j] matrix[j], in four interleaved sums.
  __device__ __forceinline__ float Dot(const float* matrix, const float (*values)[kStride], int first) const {
    float sum = 0.0f;
    int j = first;
#pragma unroll 8
    for (; j + 4 <= D; j += 4)
      sum = Sum(sum, Product(values[j + lane_][row_], __ldg(matrix + j + lane_)));
    if (lane_ == 0) {
      for (; j < D; ++j) sum = Sum(sum, Product(values[j][row_], __ldg(matrix + j)));
    }
    sum = Sum(sum, __shfl_xor_sync(~0u, sum, 1));
    return Sum(sum, __shfl_xor_sync(~0u, sum, 2));
  }

  __device__ __forceinline__ void FeedBack(const float* matrix) {
#pragma unroll 1
    for (int i = D - 1; i >= 0; --i)
      StoreLevel(i, Nearest(Difference(Centred(i), Dot(matrix + i * D, shared_.errors, i + 1))));
  }
  __device__ __forceinline__ void Descend(const float* metric, const float* inverse) {
#pragma unroll 1
    for (int i = 0; i < D; ++i) {
      const float pull = Product(Dot(metric + i * D, shared_.errors, 0), __ldg(inverse + i));
      StoreLevel(i, Nearest(Difference(Sum(Centred(i), Error(i)), pull)));
    }
  }
  __device__ __forceinline__ void SetGain(const float* metric, float fitted_scale) {
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < D; ++i) sum = Sum(sum, Level(i));
    mean_level_ = Product(sum, 1.0f / D);
    float length = 0.0f, along = 0.0f;
#pragma unroll 1
    for (int i = 0; i < D; ++i) {
      const float weighted = Dot(metric + i * D, shared_.centred, 0);
      length = Sum(length, Product(weighted, Centred(i)));
      along = Sum(along, Product(weighted, Difference(Level(i), mean_level_)));
    }
    scale_ = length > 0.0f && along > 0.0f ? __fdiv_rn(length, along) : fitted_scale;
  }

  __device__ __forceinline__ bool Store() {
    __half scale = range_ > 0.0f ? __float2half_rn(scale_) : __float2half_rn(0.0f);
    const bool is_constant = __half2float(scale) == 0.0f;
    if (is_constant) scale = __float2half_rn(0.0f);
    const float offset = Difference(mean_, Product(scale_, Sum(mean_level_, kHalf)));
    const __half stored = __float2half_rn(Sum(is_constant ? mean_ : offset, 0.0f));
    if (lane_ == 0) {
      shared_.pairs[row_] = static_cast<uint32_t>(__half_as_ushort(scale)) |
                            static_cast<uint32_t>(__half_as_ushort(stored)) << 16;
    }
    for (int i = lane_; i < D && is_constant; i += kLanes) shared_.codes[row_][i] = 0;
    const auto is_finite = [](__half x) { return (__half_as_ushort(x) & 0x7C00) != 0x7C00; };
    return spoiled_ == 0.0f && is_finite(scale) && is_finite(stored);
  }

  Shared<D>& shared_;
  const int row_, lane_;
  float mean_, range_, spoiled_, shift_, scale_, reciprocal_, mean_level_;
};

// Codes and pairs to the half of the block that belongs to the side.
template <int D, int kBits>
__device__ __forceinline__ void StoreSide(int side, Shared<D>& shared, uint8_t* block) {
  static_assert(device::NumPlanes(kBits) == 1);
  constexpr int kWords = device::SideBytes(kBits, D) / 4;
  uint32_t* words = reinterpret_cast<uint32_t*>(&shared.errors[0][0]);
  for (int i = threadIdx.x; i < kWords; i += kThreads) words[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < kTokens * D; i += kThreads) {
    const int token = i % kTokens, dim = i / kTokens;
    const device::CodePlace place = device::PlanePlace(kBits, side == 0, D, token, dim, 0);
    atomicOr(&words[place.byte / 4], static_cast<uint32_t>(shared.codes[token][dim])
                                         << (8 * (place.byte % 4) + place.shift));
  }
  __syncthreads();
  uint32_t* codes =
      reinterpret_cast<uint32_t*>(block + (side == 0 ? 0 : device::SideBytes(kBits, D)));
  for (int i = threadIdx.x; i < kWords; i += kThreads) codes[i] = words[i];
  for (int token = threadIdx.x; token < kTokens; token += kThreads) {
    *reinterpret_cast<uint32_t*>(block + (side == 0 ? device::KeyPairOffset(kBits, D, token)
                                                    : device::ValuePairOffset(kBits, D, token))) =
        shared.pairs[token];
  }
}

template <int D, int kBits>
__global__ void __launch_bounds__(kThreads)
    FeedbackKernel(const __grid_constant__ FeedbackPagesParams params) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  Shared<D>& shared = *reinterpret_cast<Shared<D>*>(shared_bytes);
  const int job = static_cast<int>(blockIdx.x) / 2, side_index = static_cast<int>(blockIdx.x) % 2;
  const int head = static_cast<int>(blockIdx.y);
  const FeedbackSide& side = params.sides[side_index];
  MakeMean<D>(params, side, params.jobs[job].page_index, shared);
  __syncthreads();
  const uint8_t* rows =
      params.row_pool +
      (static_cast<int64_t>(params.jobs[job].row_page) * params.kv_heads + head) *
          device::Bf16BlockBytes(D) +
      side_index * (device::Bf16BlockBytes(D) / 2);
  TransformRows<D>(rows, side.matrices.data + head * side.matrices.head_stride, shared);
  const int token = static_cast<int>(threadIdx.x) / kLanes;
  Row<D, kBits> row(shared, token, static_cast<int>(threadIdx.x) % kLanes);
  if (!row.Encode(side)) {
    kernels::cuda::ReportNonFinite(params.status,
                                   {1, params.layer, head, job, token, side_index, {}});
  }
  __syncthreads();
  StoreSide<D, kBits>(side_index, shared,
                      params.code_pool +
                          (static_cast<int64_t>(params.jobs[job].code_page) * params.kv_heads + head) *
                              device::BlockBytes(kBits, D));
}

}  // namespace oscar::affine::feedback
