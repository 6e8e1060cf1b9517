#include "src/kv/codec/affine/cuda_prefill.h"

#include "src/kv/codec/affine/prefill.cuh"

namespace oscar::affine {
namespace {

template <int D>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(prefill::PrefillKernel<D>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(sizeof(prefill::Shared<D>)));
}

template <int D>
cudaError_t Launch(dim3 grid, const kernels::cuda::PrefillParams& params, cudaStream_t stream) {
  grid.x *= prefill::kValueParts<D>;
  prefill::PrefillKernel<D>
      <<<grid, prefill::kThreads, sizeof(prefill::Shared<D>), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t PreparePrefill() {
  for (const cudaError_t status : {Prepare<64>(), Prepare<128>(), Prepare<192>(), Prepare<256>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t LaunchPrefill(int head_dim, const kernels::cuda::PrefillParams& params,
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
      return Launch<64>(grid, params, stream);
    case 128:
      return Launch<128>(grid, params, stream);
    case 192:
      return Launch<192>(grid, params, stream);
    case 256:
      return Launch<256>(grid, params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace oscar::affine
