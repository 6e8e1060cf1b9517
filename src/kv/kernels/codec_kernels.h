// The table of kernels of one codec on one backend. A codec fills it in its cpu.cc; the backend calls through it.
#pragma once

#include <cstdint>

#include "src/kv/kernels/params.h"

namespace oscar::kernels {

// Adds the pages of the part up into params.sums.
using AttendPartFn = void (*)(const AttendPartParams& params);
// Returns the slot of the first token whose row cannot be encoded (not finite, or beyond fp16), or -1 when all were. In a unit
// of two pages slots count on to 127.
using DemoteSideFn = int (*)(const DemoteSideParams& params);
// Stores one row [d] f32 as bf16, round to nearest even. False when a stored value is not finite.
using StoreRowFn = bool (*)(const float* row, int head_dim, uint16_t* stored);

struct CodecKernels {
  AttendPartFn decode_attention = nullptr;   // at most kMaxDecodeRows rows
  AttendPartFn prefill_attention = nullptr;  // at most kMaxTileRows rows
  DemoteSideFn demote = nullptr;             // null for bf16
  const RowCodec* row_codec = nullptr;       // what a codec in plain C++ hands to the three above; null for the others
  StoreRowFn store_row = nullptr;            // bf16 only: rows enter every cache through it
};

}  // namespace oscar::kernels
