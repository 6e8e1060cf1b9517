// RoPE on single rows, for methods that keep keys as they were before it (RotateKV).
#pragma once

#include <span>

#include "oscar/codec_profile.h"

namespace oscar::transform {

// Turns a row [d] as RoPE does at `position`; a negative position turns it back. Angles in double, one rounding per value.
void TurnRow(const RotaryEmbedding& rotary, int position, std::span<float> row);

}  // namespace oscar::transform
