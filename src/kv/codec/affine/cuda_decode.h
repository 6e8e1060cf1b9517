// Table of the decode attention kernels of the affine codec, one row per (head_dim, heads of a
// visit, variant). A missing row is an error when the table is asked, never a fallback.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "src/kv/kernels/cuda/decode_params.h"

namespace oscar::affine {

enum class DecodeKernelKind { kNormal, kLoadOnly, kComputeOnly };  // the last two for benches

struct DecodeKernel {
  int head_dim;
  int head_tile;  // query heads per KV head that it takes at most: 4, 8 or 16
  int bits;       // of a code: 1, 2 or 4
  DecodeKernelKind kind;
  const void* function;  // void(const DecodeParams)
  int threads;
  size_t shared_bytes;
};

std::span<const DecodeKernel> DecodeKernelsD64();
std::span<const DecodeKernel> DecodeKernelsD128();
std::span<const DecodeKernel> DecodeKernelsD192();
std::span<const DecodeKernel> DecodeKernelsD256();
std::span<const DecodeKernel> DecodeKernelsOfLimits();
std::span<const DecodeKernel> DecodeKernelsOf16Heads();
// Of 1 and 4 bits; those of 2 bits stand above.
template <int kBits, int D>
std::span<const DecodeKernel> DecodeKernelsOf();

// The smallest kernel that takes `group` query heads per KV head, or null.
const DecodeKernel* FindDecodeKernel(int head_dim, int group, DecodeKernelKind kind, int bits = 2);

// Asks for the kernel's shared memory, once per process and device, before the first launch.
cudaError_t PrepareDecodeKernel(const DecodeKernel& kernel);

// One launch of num_ctas CTAs. With overlap_start the kernel may start while its predecessors in
// the stream still run; then these must not write the plan, the page tables or INT2 pages (BF16
// rows and queries they may).
cudaError_t LaunchDecode(const DecodeKernel& kernel, const kernels::cuda::DecodeParams& params,
                         int num_ctas, bool overlap_start, cudaStream_t stream);

}  // namespace oscar::affine
