// What the processor has beyond the SIMD targets that Highway tells apart.
#pragma once

namespace oscar::base {

// VPDPBUSD on 512-bit registers, usable under Highway's AVX3 target.
bool HasAvx512Vnni();

}  // namespace oscar::base
