// CPU kernels of BF16 pages: the whole cache of the bf16 method, sink and window of every other.
#pragma once

#include "src/kv/kernels/codec_kernels.h"

namespace oscar::bf16 {

const kernels::CodecKernels& CpuKernels();

}  // namespace oscar::bf16
