// The memory ledger of method.md 4: bits per element, formula by formula. LedgerAt (oscar/kv_cache.h) puts them
// together.
#pragma once

#include <cstdint>

#include "oscar/codec.h"

namespace oscar::pool {

// Bits per encoded element as stored, scale and offset included: b(d) = 2 + 32/d for int2. 16 for bf16.
double SteadyBits(const CodecInfo& codec, int head_dim);

// BPE(T) = (16 n_bf16 + b (T - n_bf16)) / T for T = num_tokens held, n_bf16 of them in BF16. 0 for T = 0.
double BitsPerElement(double steady_bits, int64_t num_tokens, int64_t bf16_tokens);

}  // namespace oscar::pool
