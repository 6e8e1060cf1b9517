// RotateKV (arXiv 2501.16383, baselines.md 6.6): keys as they were before RoPE, of four KV heads together, times a Hadamard matrix
// over all four, their channels brought into a calibrated order, then 2 bits per token in groups of 128 of them; values times a
// Hadamard matrix per head, one group per head. Range factor 0.8. Keys are turned by RoPE when they are read. The released code
// orders the channels of all heads of a layer; here each four heads have an order of their own, so that they stay one unit of the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oscar/codec.h"
#include "oscar/codec_profile.h"
#include "src/kv/kernels/row_codec.h"

namespace oscar::rotatekv {

inline constexpr int kHeadsTogether = 4;
inline constexpr float kRangeFactor = 0.8f;

std::size_t PageBytes(int head_dim);
const kernels::RowCodec& Codec();
// kUnsupported naming the method unless the KV heads are a multiple of 4, the head dimension is 64 or 128 and `rotary` has angles.
Status CheckShape(const std::string& method, const KvShape& shape, const RotaryEmbedding& rotary);
// rotatekv_unordered: the channels as they are. rotatekv is kFailedPrecondition: its order is calibrated. And the errors of CheckShape.
Result<CodecProfile> MakeProfile(const KvMethod& method, const KvShape& shape, const RotaryEmbedding& rotary);
// orders: by layer and four heads, the permutation of their 4 d channels; none for rotatekv_unordered. Errors as CheckShape.
Result<CodecProfile> MakeProfileWithOrders(const std::string& method, const KvShape& shape, const RotaryEmbedding& rotary,
                                           std::vector<std::vector<uint16_t>> orders, Provenance provenance);
// What the codec can encode: no clip, no other encoder, keys with the zero mean that carries the rotary embedding.
Status CheckRow(const RowProfile& row);

}  // namespace oscar::rotatekv
