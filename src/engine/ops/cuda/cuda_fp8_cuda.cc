// FP8 products of CudaOps: matrices and rows as codes with a scale per row (fp8_kernels.h), multiplied by cuBLASLt.
#include <algorithm>
#include <cmath>
#include <string>

#include "src/base/status_macros.h"
#include "src/engine/ops/cuda/cuda_ops.h"
#include "src/engine/ops/cuda/dense_kernels.h"
#include "src/engine/ops/cuda/fp8_kernels.h"
#include "src/engine/weights/dequantize.h"

namespace oscar::engine {

using cuda::FromCuda;

namespace {

Status FromLibrary(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {StatusCode::kInternal, std::string("cuBLASLt, ") + what + ": " + cublasGetStatusString(status)};
}

uint8_t* Codes(uint16_t* place) { return reinterpret_cast<uint8_t*>(place); }
const uint8_t* Codes(const uint16_t* place) { return reinterpret_cast<const uint8_t*>(place); }

}  // namespace

Status CudaOps::PlaceFp8(const Weight& weight, PlacedWeight& placed) {
  const int64_t width = weight.dims[0], rows = weight.dims[1];
  if (width % kFp8Rows != 0) {
    return {StatusCode::kUnsupported, "tensor \"" + weight.name + "\" has rows of " + std::to_string(width) + " values; FP8 products need a multiple of 16"};
  }
  const size_t bytes = Fp8Bytes(rows, width);
  OSCAR_TRY(placed.matrix.Grow(bytes / 2));
  OSCAR_TRY(FromCuda(cudaMemsetAsync(placed.matrix.data(), 0, bytes, stream_), "weights"));
  uint8_t* const codes = Codes(placed.matrix.data());
  float* const scales = Fp8Scales(codes, static_cast<int>(rows), static_cast<int>(width));
  cuda::DeviceArray<uint16_t> random;
  cuda::DeviceArray<float> staged;
  if (weight.is_random) {
    OSCAR_TRY(random.Grow(static_cast<size_t>(width * rows)));
    const float deviation = 1.0f / std::sqrt(static_cast<float>(width));
    OSCAR_TRY(FromCuda(LaunchRandomNormal(random.data(), width * rows, deviation, weights_.size(), stream_), "random weights"));
    OSCAR_TRY(FromCuda(LaunchQuantizeRows({nullptr, random.data(), codes, scales, static_cast<int32_t>(rows), static_cast<int32_t>(rows),
                                         static_cast<int32_t>(width)}, stream_), "weights"));
    return FromCuda(cudaStreamSynchronize(stream_), "weights");
  }
  const int64_t rows_at_once = std::max<int64_t>(1, kPlacedAtOnce / width);
  for (int64_t first = 0; first < rows; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows - first);
    OSCAR_ASSIGN_OR_RETURN(const std::vector<float> values, DequantizeRows(weight, first, count));
    OSCAR_TRY(staged.Upload(values, stream_));
    const QuantizeRowsParams params = {staged.data(), nullptr, codes + first * width, scales + first, static_cast<int32_t>(count),
                                       static_cast<int32_t>(count), static_cast<int32_t>(width)};
    OSCAR_TRY(FromCuda(LaunchQuantizeRows(params, stream_), "weights"));
  }
  return FromCuda(cudaStreamSynchronize(stream_), "weights");
}

// Places of a product: its sums over codes, and the codes of its rows.
Status CudaOps::PlaceFp8Node(Node& node) {
  const size_t sums = static_cast<size_t>(PaddedFp8Rows(node.rows)) * static_cast<size_t>(PaddedFp8Rows(node.width));
  OSCAR_ASSIGN_OR_RETURN(node.beside, TakeScratch(node.kind == Kind::kGatedMatMul ? 2 * sums : sums));
  Node& x = *node.a;
  if (x.rounded != nullptr) return {};
  OSCAR_ASSIGN_OR_RETURN(float* const place, TakeScratch(Fp8Bytes(x.rows, x.width) / sizeof(float)));
  x.rounded = reinterpret_cast<uint16_t*>(place);
  return {};
}

Result<const CudaOps::Fp8Plan*> CudaOps::Fp8PlanOf(int in_width, int out_width, int rows) {
  const auto found = std::ranges::find_if(fp8_plans_, [&](const Fp8Plan& plan) {
    return plan.in_width == in_width && plan.out_width == out_width && plan.rows == rows;
  });
  if (found != fp8_plans_.end()) return &*found;
  if (fp8_product_ == nullptr) {
    OSCAR_TRY(FromLibrary(cublasLtMatmulDescCreate(&fp8_product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "FP8 product"));
    const cublasOperation_t turned = CUBLAS_OP_T;
    OSCAR_TRY(FromLibrary(cublasLtMatmulDescSetAttribute(fp8_product_, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned)), "FP8 product"));
  }
  // Column-major: out^T [out_width, rows] = W x^T.
  Fp8Plan& plan = fp8_plans_.emplace_back();
  const auto in = static_cast<uint64_t>(in_width), out = static_cast<uint64_t>(out_width), count = static_cast<uint64_t>(rows);
  OSCAR_TRY(FromLibrary(cublasLtMatrixLayoutCreate(&plan.matrix, CUDA_R_8F_E4M3, in, out, in_width), "FP8 matrix"));
  OSCAR_TRY(FromLibrary(cublasLtMatrixLayoutCreate(&plan.x, CUDA_R_8F_E4M3, in, count, in_width), "FP8 rows"));
  OSCAR_TRY(FromLibrary(cublasLtMatrixLayoutCreate(&plan.out, CUDA_R_32F, out, count, out_width), "sums"));
  cublasLtMatmulPreference_t preference = nullptr;
  OSCAR_TRY(FromLibrary(cublasLtMatmulPreferenceCreate(&preference), "FP8 product"));
  const size_t workspace = kLibraryWorkspace;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
  cublasLtMatmulHeuristicResult_t best = {};
  int num_found = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(reinterpret_cast<cublasLtHandle_t>(library_), fp8_product_, plan.matrix, plan.x, plan.out,
                                                              plan.out, preference, 1, &best, &num_found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (asked != CUBLAS_STATUS_SUCCESS || num_found == 0) {
    return {StatusCode::kUnsupported, "cuBLASLt has no FP8 product of " + std::to_string(rows) + " rows with a matrix of " + std::to_string(out_width) +
                                          " by " + std::to_string(in_width)};
  }
  plan.algorithm = best.algo;
  plan.in_width = in_width;  // now it is complete
  plan.out_width = out_width;
  plan.rows = rows;
  return &plan;
}

void CudaOps::DropFp8Plans() {
  for (const Fp8Plan& plan : fp8_plans_) {
    for (const cublasLtMatrixLayout_t layout : {plan.matrix, plan.x, plan.out}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
  if (fp8_product_ != nullptr) cublasLtMatmulDescDestroy(fp8_product_);
}

Status CudaOps::MultiplyFp8(const Node& x, const uint16_t* matrix, int out_width, float* out) {
  OSCAR_ASSIGN_OR_RETURN(const Fp8Plan* const plan, Fp8PlanOf(x.width, PaddedFp8Rows(out_width), PaddedFp8Rows(x.rows)));
  const float one = 1, zero = 0;
  return FromLibrary(cublasLtMatmul(reinterpret_cast<cublasLtHandle_t>(library_), fp8_product_, &one, matrix, plan->matrix, x.rounded, plan->x, &zero, out,
                                    plan->out, out, plan->out, &plan->algorithm, library_workspace_.data(), kLibraryWorkspace, stream_), "FP8 product");
}

Status CudaOps::EmitFp8Product(Node& node) {
  Node& x = *node.a;
  uint8_t* const codes = Codes(x.rounded);
  float* const row_scales = Fp8Scales(codes, x.rows, x.width);
  if (!x.is_rounded) {
    OSCAR_TRY(FromCuda(LaunchQuantizeRows({x.data, nullptr, codes, row_scales, x.rows, PaddedFp8Rows(x.rows), x.width}, stream_), "rounding"));
    x.is_rounded = true;
  }
  FinishFp8Params finish = {};
  finish.product = node.beside;
  finish.row_scales = row_scales;
  finish.scales = Fp8Scales(Codes(node.matrix), node.width, x.width);
  finish.bias = node.vector;
  finish.residual = node.b != nullptr ? node.b->data : nullptr;
  finish.out = node.data;
  finish.num_rows = node.rows;
  finish.width = node.width;
  finish.product_stride = PaddedFp8Rows(node.width);
  OSCAR_TRY(MultiplyFp8(x, node.matrix, node.width, node.beside));
  if (node.kind == Kind::kGatedMatMul) {
    float* const second = node.beside + int64_t{PaddedFp8Rows(node.rows)} * finish.product_stride;
    OSCAR_TRY(MultiplyFp8(x, node.second_matrix, node.width, second));
    finish.second = second;
    finish.second_scales = Fp8Scales(Codes(node.second_matrix), node.width, x.width);
  }
  return FromCuda(LaunchFinishFp8(finish, stream_), "product");
}

Status CudaOps::EmitFp8Embedding(const Node& node) {
  const uint8_t* const codes = Codes(node.matrix);
  return FromCuda(LaunchEmbedFp8({codes, Fp8Scales(codes, node.group, node.width), tokens_.data(), node.data, node.rows, node.width}, stream_), "embedding");
}

}  // namespace oscar::engine
