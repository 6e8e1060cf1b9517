// What the processor has beyond the SIMD targets that Highway tells apart.
#pragma once

namespace oscar::base {

// One instruction for four products of bytes and their sum: VPDPBUSD on 512-bit registers, usable under Highway's AVX3 target, or Arm's SDOT.
bool HasByteDotInstruction();

// What code compiled for AVX-512 F, BW, DQ, VL and VNNI, AVX2 and FMA needs. False on Arm.
bool HasAvx512ByteProducts();

}  // namespace oscar::base
