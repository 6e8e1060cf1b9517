// TurboQuant (arXiv 2504.19874), as vLLM has it and as the paper has it (baselines.md 6.2 and 6.3).
//
// vLLM's: K times a Hadamard matrix, codebook indices and a norm, the centroid vector brought to that norm on reading; V is an affine row, not rotated.
//   turboquant3 (turboquant_3bit_nc), turboquant4 (turboquant_4bit_nc), turboquant3v4 (turboquant_k3v4_nc)
// The paper's: K and V times one random orthogonal matrix.
//   turboquant_mse2, _mse3, _mse4   indices and a norm: least squared error, inner products shrink
//   turboquant_product3             2-bit indices, the signs of a random projection of what is left, two norms: unbiased
#pragma once

#include <cstddef>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::turboquant {

// vLLM's, for (key bits, value bits) of (3, 3), (4, 4) and (3, 4).
template <int kKeyBits, int kValueBits>
std::size_t VllmPageBytes(int head_dim);
template <int kKeyBits, int kValueBits>
const kernels::RowCodec& VllmCodec();
// kUnsupported unless the head dimension is a power of two.
Result<CodecProfile> MakeVllmProfile(const KvMethod& method, const KvShape& shape);

// The paper's, for 2, 3 and 4 bits.
template <int kBits>
std::size_t MsePageBytes(int head_dim);
template <int kBits>
const kernels::RowCodec& MseCodec();
// 3 bits an element, one of them a sign.
std::size_t ProductPageBytes(int head_dim);
const kernels::RowCodec& ProductCodec();
Result<CodecProfile> MakePaperProfile(const KvMethod& method, const KvShape& shape);

}  // namespace oscar::turboquant
