// FP8 products: matrices and rows in E4M3 (4 bits of exponent, 3 of mantissa, largest 448), each row with the f32 scale that takes its
// largest magnitude to 448. A library multiplies the codes, in f32; these kernels make the codes and finish the products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace oscar::engine {

// Rows of matrices and of activations come in multiples of this for the library; what is added is zero or not read.
inline constexpr int kFp8Rows = 16;
constexpr int PaddedFp8Rows(int rows) { return (rows + kFp8Rows - 1) / kFp8Rows * kFp8Rows; }

// Codes [padded rows, width] and behind them the scales [padded rows] f32. width: a multiple of 16.
constexpr std::size_t Fp8Bytes(int64_t rows, int64_t width) {
  const int64_t padded = (rows + kFp8Rows - 1) / kFp8Rows * kFp8Rows;
  return static_cast<std::size_t>(padded * (width + static_cast<int64_t>(sizeof(float))));
}
constexpr int64_t Fp8ScalesStart(int rows, int width) { return int64_t{PaddedFp8Rows(rows)} * width; }  // bytes
inline float* Fp8Scales(uint8_t* codes, int rows, int width) { return reinterpret_cast<float*>(codes + Fp8ScalesStart(rows, width)); }
inline const float* Fp8Scales(const uint8_t* codes, int rows, int width) {
  return reinterpret_cast<const float*>(codes + Fp8ScalesStart(rows, width));
}

// [num_rows, width] f32 or bf16 without gaps to codes and scales; zeros in the rows from there to padded_rows.
struct QuantizeRowsParams {
  const float* x;        // or null and
  const uint16_t* bf16;
  uint8_t* codes;
  float* scales;
  int32_t num_rows, padded_rows, width;
};
cudaError_t LaunchQuantizeRows(const QuantizeRowsParams& params, cudaStream_t stream);

// Rows of a table in FP8 by index, as f32.
struct EmbedFp8Params {
  const uint8_t* table;
  const float* scales;
  const int32_t* tokens;  // [num_rows]
  float* out;             // [num_rows, width]
  int32_t num_rows, width;
};
cudaError_t LaunchEmbedFp8(const EmbedFp8Params& params, cudaStream_t stream);

// out[m][n] = product[m][n] row_scales[m] scales[n] + bias[n] + residual[m][n]; gated: silu of that of `product`, without bias, times that
// of `second`.
struct FinishFp8Params {
  const float* product;        // [num_rows, product_stride] sums over codes
  const float* second;         // likewise, or null: not gated
  const float* row_scales;     // [num_rows]
  const float* scales;         // [width]
  const float* second_scales;  // [width] of `second`
  const float* bias;           // [width] or null
  const float* residual;       // [num_rows, width] or null; may be `out`
  float* out;                  // [num_rows, width]
  int32_t num_rows, width, product_stride;
};
cudaError_t LaunchFinishFp8(const FinishFp8Params& params, cudaStream_t stream);

}  // namespace oscar::engine
