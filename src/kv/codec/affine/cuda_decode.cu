#include "src/kv/codec/affine/cuda_decode.h"

namespace oscar::affine {

const DecodeKernel* FindDecodeKernel(int head_dim, int group, DecodeKernelKind kind, int bits) {
  const DecodeKernel* best = nullptr;
  for (const std::span<const DecodeKernel> kernels :
       {DecodeKernelsD64(), DecodeKernelsD128(), DecodeKernelsD192(), DecodeKernelsD256(),
        DecodeKernelsOf16Heads(), DecodeKernelsOfLimits(), DecodeKernelsOf<1, 64>(),
        DecodeKernelsOf<1, 128>(), DecodeKernelsOf<1, 192>(), DecodeKernelsOf<1, 256>(),
        DecodeKernelsOf<4, 64>(), DecodeKernelsOf<4, 128>(), DecodeKernelsOf<4, 192>(),
        DecodeKernelsOf<4, 256>()}) {
    for (const DecodeKernel& kernel : kernels) {
      if (kernel.head_dim != head_dim || kernel.head_tile < group || kernel.kind != kind ||
          kernel.bits != bits) {
        continue;
      }
      if (best == nullptr || kernel.head_tile < best->head_tile) best = &kernel;
    }
  }
  return best;
}

cudaError_t PrepareDecodeKernel(const DecodeKernel& kernel) {
  return cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kernel.shared_bytes));
}

cudaError_t LaunchDecode(const DecodeKernel& kernel, const kernels::cuda::DecodeParams& params,
                         int num_ctas, bool overlap_start, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_ctas);
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap_start ? 1 : 0;
  kernels::cuda::DecodeParams copy = params;
  copy.overlaps_start = overlap_start ? 1 : 0;
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, kernel.function, arguments);
}

}  // namespace oscar::affine
