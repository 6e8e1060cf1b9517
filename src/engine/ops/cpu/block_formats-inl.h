// What the products of quantised weights share on x86-64: activations rounded to 8 bits per block of 32 as ggml rounds them, and the blocks of ggml's
// formats with 32 values.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#define OSCAR_BLOCK_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

#endif

namespace oscar::engine {

inline constexpr int64_t kBlock = 32;  // values that share a scale

#if defined(__x86_64__)

// Rounds 32 activations and returns their scale, through fp16 with kStored (as ggml's Q8_0 and Q8_1 keep it). Loops that the compiler turns into vectors: the
// largest magnitude as an integer, rounding by a number whose unit is 1. A NaN stays one.
template <bool kStored>
OSCAR_BLOCK_TARGET inline float RoundBlock(const float* x, int8_t* values) {
  int32_t largest_bits = 0;
  for (int i = 0; i < kBlock; ++i) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  const float largest = std::bit_cast<float>(largest_bits);
  const float reciprocal = largest > 0.0f ? 127.0f / largest : 0.0f;
  constexpr float kUnit = 12582912.0f;  // 1.5 2^23
  for (int i = 0; i < kBlock; ++i) {
    values[i] = static_cast<int8_t>(std::bit_cast<int32_t>(x[i] * reciprocal + kUnit) - std::bit_cast<int32_t>(kUnit));
  }
  const float scale = largest / 127.0f;
  return kStored ? _cvtsh_ss(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT)) : scale;
}

OSCAR_BLOCK_TARGET inline float F32FromF16(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return _cvtsh_ss(bits);
}
OSCAR_BLOCK_TARGET inline __m256i Load32(const uint8_t* bytes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)); }

// Nibbles of 16 bytes, the low ones first.
OSCAR_BLOCK_TARGET inline __m256i Nibbles(const uint8_t* bytes) {
  const __m256i shifts = _mm256_set_m128i(_mm_set1_epi16(4), _mm_setzero_si128());
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return _mm256_and_si256(_mm256_srlv_epi16(both, shifts), _mm256_set1_epi8(15));
}
// A fifth bit for each of 32 codes.
OSCAR_BLOCK_TARGET inline __m256i WithFifthBits(__m256i nibbles, const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return _mm256_mask_add_epi8(nibbles, bits, nibbles, _mm256_set1_epi8(16));
}

// Blocks of 32 weights: scale (2^kShift is what codes are above the numbers they stand for), or with kHasMinima scale and least value; codes without
// sign. Scale and least value are fp16 and come first.
struct Q4_0 {
  static constexpr int kUnit = 32, kBytes = 18, kSubs = 1, kShift = 3;
  static constexpr bool kHasMinima = false;
  OSCAR_BLOCK_TARGET static __m256i Codes(const uint8_t* block) { return Nibbles(block + 2); }
};
struct Q4_1 {
  static constexpr int kUnit = 32, kBytes = 20, kSubs = 1, kShift = 0;
  static constexpr bool kHasMinima = true;
  OSCAR_BLOCK_TARGET static __m256i Codes(const uint8_t* block) { return Nibbles(block + 4); }
};
struct Q5_0 {
  static constexpr int kUnit = 32, kBytes = 22, kSubs = 1, kShift = 4;
  static constexpr bool kHasMinima = false;
  OSCAR_BLOCK_TARGET static __m256i Codes(const uint8_t* block) { return WithFifthBits(Nibbles(block + 6), block + 2); }
};
struct Q5_1 {
  static constexpr int kUnit = 32, kBytes = 24, kSubs = 1, kShift = 0;
  static constexpr bool kHasMinima = true;
  OSCAR_BLOCK_TARGET static __m256i Codes(const uint8_t* block) { return WithFifthBits(Nibbles(block + 8), block + 4); }
};
struct Q8_0 {
  static constexpr int kUnit = 32, kBytes = 34, kSubs = 1, kShift = 7;
  static constexpr bool kHasMinima = false;
  OSCAR_BLOCK_TARGET static __m256i Codes(const uint8_t* block) { return _mm256_xor_si256(Load32(block + 2), _mm256_set1_epi8(static_cast<char>(0x80))); }
};

#endif

}  // namespace oscar::engine
