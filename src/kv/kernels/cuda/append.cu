#include "src/kv/kernels/cuda/cache_kernels.h"
#include "src/kv/kernels/cuda/row_layout.h"

namespace oscar::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// One CTA per token; a thread moves 16-byte pieces.
__global__ void __launch_bounds__(kThreads) AppendKernel(const AppendParams params) {
  const int token = static_cast<int>(blockIdx.x), d = params.head_dim, pieces = d / 8;
  const int page = params.pages[token], slot = params.slots[token];
  for (int i = threadIdx.x; i < 2 * params.kv_heads * pieces; i += kThreads) {
    const int side = i / (params.kv_heads * pieces), head = i / pieces % params.kv_heads,
              dim = i % pieces * 8;
    const uint16_t* row =
        (side == 0 ? params.keys : params.values) + token * params.row_stride + head * d;
    const uint4 x = *reinterpret_cast<const uint4*>(row + dim);
    uint8_t* block =
        params.row_pool + (static_cast<int64_t>(page) * params.kv_heads + head) * Bf16BlockBytes(d);
    *reinterpret_cast<uint4*>(
        block + (side == 0 ? Bf16KeyOffset(d, slot, dim) : Bf16ValueOffset(d, slot, dim))) = x;
    // An exponent of ones carries into the place of the sign.
    uint32_t not_finite = 0;
    for (const uint32_t word : {x.x, x.y, x.z, x.w})
      not_finite |= (word & 0x7F807F80u) + 0x00800080u;
    if ((not_finite & 0x80008000u) != 0)
      ReportNonFinite(params.status, {1, params.layer, head, token, slot, side, {}});
  }
}

}  // namespace

cudaError_t LaunchAppend(const AppendParams& params, int num_tokens, cudaStream_t stream) {
  if (num_tokens == 0) return cudaSuccess;
  if (num_tokens < 0 || params.kv_heads < 1 || params.head_dim % 64 != 0 ||
      params.row_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  AppendKernel<<<num_tokens, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace oscar::kernels::cuda
