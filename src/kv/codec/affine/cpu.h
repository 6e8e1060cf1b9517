// CPU kernels of the affine codecs.
#pragma once

#include "src/kv/kernels/codec_kernels.h"

namespace oscar::affine {

const kernels::CodecKernels& Int2CpuKernels();

}  // namespace oscar::affine
