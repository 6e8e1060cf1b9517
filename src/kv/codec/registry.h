// Codecs by name, and their kernels. The public list is oscar/codec.h; registry.cc is the one place that names them all.
#pragma once

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/codec_kernels.h"

namespace oscar {

struct CodecKernelEntry {
  const kernels::CodecKernels* kernels = nullptr;
  // Whether the codec can encode and read rows of this description: kUnsupported or kInvalidArgument with the reason.
  Status (*check_row)(const RowProfile& row) = nullptr;
  // The profile of a method from shape and rotary embedding; null for the affine codec, whose presets DataFreeProfile knows.
  Result<CodecProfile> (*make_profile)(const KvMethod& method, const KvShape& shape, const RotaryEmbedding& rotary) = nullptr;
  // rows [64, d] f32 in code space of one side of one (page, KV head), for tools; null where kernels->row_codec reads tiles.
  void (*read_rows)(KvSide side, int head_dim, const std::byte* page, float* rows) = nullptr;
};

// Kernels of an encoding codec on the CPU; nullptr for bf16, or a codec without them.
const CodecKernelEntry* FindCpuKernels(const CodecInfo& codec);
// Kernels of the BF16 pages that every cache has.
const kernels::CodecKernels& Bf16CpuKernels();

}  // namespace oscar
