// Byte geometry of BF16 pages on the device (gpu.md 4.2), for host and device code. A block is one
// (page, KV head): 64 K rows, then 64 V rows, 256 d bytes; the 16-byte piece i of a row stands at i
// ^ (token & 7), so that the matrix loads of eight neighbouring tokens read different banks after a
// plain copy to shared memory.
#pragma once

#include <cstdint>

namespace oscar::kernels::cuda {

constexpr int Bf16BlockBytes(int d) { return 256 * d; }
constexpr int Bf16TileBytes(int d) { return 32 * d; }  // 16 tokens of one side
constexpr int Bf16KeyOffset(int d, int token, int dim) {
  return token * 2 * d + (((dim >> 3) ^ (token & 7)) << 4) + 2 * (dim & 7);
}
constexpr int Bf16ValueOffset(int d, int token, int dim) {
  return 128 * d + Bf16KeyOffset(d, token, dim);
}

}  // namespace oscar::kernels::cuda
