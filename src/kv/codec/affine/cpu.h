// CPU kernels of the affine codecs.
#pragma once

#include "src/kv/kernels/codec_kernels.h"

namespace oscar::affine {

const kernels::CodecKernels& Int1CpuKernels();
const kernels::CodecKernels& Int2CpuKernels();
const kernels::CodecKernels& Int4CpuKernels();

}  // namespace oscar::affine
