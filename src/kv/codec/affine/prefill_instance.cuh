// The launches of the prefill kernel for one number of bits: what the cuda_prefill_intN.cu files instantiate.
#pragma once

#include "src/kv/codec/affine/cuda_prefill.h"
#include "src/kv/codec/affine/prefill.cuh"

namespace oscar::affine {

namespace prefill {

template <int D, int kBits>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(PrefillKernel<D, kBits>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(sizeof(Shared<D, kBits>)));
}

template <int D, int kBits>
cudaError_t Launch(dim3 grid, const kernels::cuda::PrefillParams& params, cudaStream_t stream) {
  grid.x *= kValueParts<D>;
  PrefillKernel<D, kBits><<<grid, kThreads, sizeof(Shared<D, kBits>), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace prefill

template <int kBits>
cudaError_t PreparePrefillOf() {
  for (const cudaError_t status : {prefill::Prepare<64, kBits>(), prefill::Prepare<128, kBits>(),
                                   prefill::Prepare<192, kBits>(), prefill::Prepare<256, kBits>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

template <int kBits>
cudaError_t LaunchPrefillOf(int head_dim, const kernels::cuda::PrefillParams& params,
                            cudaStream_t stream) {
  if (params.num_tokens == 0) return cudaSuccess;
  if (params.num_tokens < 0 || params.sink % prefill::kTokens != 0 ||
      params.recent % prefill::kTokens != 0 || params.num_splits < 1) {
    return cudaErrorInvalidValue;
  }
  const int first_tile = params.first_position / prefill::kTokens;
  const int last_tile = (params.first_position + params.num_tokens - 1) / prefill::kTokens;
  const int row_parts = (params.group * prefill::kTokens + prefill::kRows - 1) / prefill::kRows;
  const dim3 grid((last_tile - first_tile + 1) * row_parts, params.kv_heads, params.num_splits);
  switch (head_dim) {
    case 64:
      return prefill::Launch<64, kBits>(grid, params, stream);
    case 128:
      return prefill::Launch<128, kBits>(grid, params, stream);
    case 192:
      return prefill::Launch<192, kBits>(grid, params, stream);
    case 256:
      return prefill::Launch<256, kBits>(grid, params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::affine
