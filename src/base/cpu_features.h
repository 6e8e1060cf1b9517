// What the processor has beyond the SIMD targets that Highway tells apart.
#pragma once

namespace oscar::base {

// VPDPBUSD on 512-bit registers, usable under Highway's AVX3 target.
bool HasAvx512Vnni();

// What code compiled for AVX-512 F, BW, DQ, VL and VNNI, AVX2 and FMA needs.
bool HasAvx512ByteProducts();

}  // namespace oscar::base
