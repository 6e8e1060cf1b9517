// Conversions between float and the 16-bit formats, bit for bit, round to nearest even. Scalar; SIMD code has its own.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace oscar::base {

inline uint16_t Bf16FromF32(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);  // keep it a NaN, quiet
  bits += 0x7FFF + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}
inline float F32FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
inline float RoundToBf16(float value) { return F32FromBf16(Bf16FromF32(value)); }

// Overflow gives infinity, underflow subnormals.
inline uint16_t F16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);  // >= 65536
  if (magnitude < 0x38800000) {                                            // below 2^-14: subnormal or zero
    // Adding 0.5 aligns the last subnormal bit (2^-24) with the last bit of the float sum, which rounds to even.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  const uint32_t half = (rounded - 0x38000000) >> 13;
  return static_cast<uint16_t>(sign | (half >= 0x7C00 ? 0x7C00 : half));
}
inline float F32FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace oscar::base
