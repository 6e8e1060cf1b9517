// What this processor does at best: the ceilings that kernels are held against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oscar/executor.h"

namespace oscar::base {

// Dot products of bytes in registers (byte_dot-inl.h), 16 vectors `rounds` times, with the fastest instruction of the processor. Returns the
// multiply-adds of it, 0 where the target has no such products. *result takes part in them and receives their sum.
int64_t RunByteDots(int rounds, int32_t* result);

// Multiply-adds of bytes per second on all threads together, one number per repeat; empty where RunByteDots does nothing.
std::vector<double> ByteDotRates(Executor& executor, int repeats);

// Bytes read per second on all threads together, each its part of a buffer of `bytes` that is read once per repeat; one number per repeat.
// Precondition: bytes >= 4096 per thread. Empty when the buffer cannot be allocated.
std::vector<double> ReadRates(Executor& executor, std::size_t bytes, int repeats);

}  // namespace oscar::base
