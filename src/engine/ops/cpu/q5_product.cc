#include "src/engine/ops/cpu/q5_product.h"

#include "src/base/check.h"
#include "src/base/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#endif

namespace oscar::engine {

#if defined(__x86_64__)
namespace {

constexpr int64_t kBlock = 32;  // values that share a scale

constexpr int64_t kPrefetchBytes = 4096;  // 2 to 6 KiB measure alike; without, memory gives a quarter

// A block of Q5_0 in the file.
struct Q5Block {
  uint16_t scale_f16;
  uint8_t fifth_bits[4];  // bit i: of value i
  uint8_t codes[16];      // low nibbles: values 0 .. 15, high nibbles: 16 .. 31
};
static_assert(sizeof(Q5Block) == 22);

// A row of activations: rounded values [width], starts of the dot products [width / 4], scales [width / 32].
struct Activations {
  const int8_t* values;
  const int32_t* starts;
  const float* scales;
};
Activations View(const std::byte* prepared, int64_t width) {
  return {reinterpret_cast<const int8_t*>(prepared), reinterpret_cast<const int32_t*>(prepared + width),
          reinterpret_cast<const float*>(prepared + 2 * width)};
}

#define OSCAR_Q5_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))

// Loops that the compiler turns into vectors: the largest magnitude as an integer, rounding by a number whose unit is 1.
OSCAR_Q5_TARGET void PrepareBlock(const float* x, int8_t* values, int32_t* starts, float* scale) {
  int32_t largest_bits = 0;
  for (int i = 0; i < kBlock; ++i) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  const float largest = std::bit_cast<float>(largest_bits);  // a NaN stays one
  *scale = _cvtsh_ss(_cvtss_sh(largest / 127.0f, _MM_FROUND_TO_NEAREST_INT));  // as ggml stores it, so that sums are its sums to the bit
  const float reciprocal = largest > 0.0f ? 127.0f / largest : 0.0f;
  constexpr float kUnit = 12582912.0f;  // 1.5 2^23
  for (int i = 0; i < kBlock; ++i) {
    values[i] = static_cast<int8_t>(std::bit_cast<int32_t>(x[i] * reciprocal + kUnit) - std::bit_cast<int32_t>(kUnit));
  }
  for (int i = 0; i < kBlock / 4; ++i) {
    starts[i] = -16 * (values[4 * i] + values[4 * i + 1] + values[4 * i + 2] + values[4 * i + 3]);
  }
}

// kRows rows of weights, so that they share the loads of the activations and hide each other's latency.
template <int kRows>
OSCAR_Q5_TARGET void MultiplyRows(const Q5Block* weights, const Activations& x, int64_t num_blocks, float* out) {
  const __m256i shifts = _mm256_set_m128i(_mm_set1_epi16(4), _mm_setzero_si128());
  const __m256i nibble = _mm256_set1_epi8(15), sixteen = _mm256_set1_epi8(16);
  __m256 sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < num_blocks; ++b) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.values + b * kBlock));
    const __m256i start = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.starts + b * kBlock / 4));
    const __m256 scale = _mm256_set1_ps(x.scales[b]);
    // Rows are short, so that the hardware hardly finds their streams; together they are one.
    const char* ahead = reinterpret_cast<const char*>(weights) + kPrefetchBytes + b * kRows * static_cast<int64_t>(sizeof(Q5Block));
    _mm_prefetch(ahead, _MM_HINT_T0);
    if (kRows > 1) _mm_prefetch(ahead + 64, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Q5Block* block = weights + r * num_blocks + b;
      uint32_t fifth_bits;
      std::memcpy(&fifth_bits, block->fifth_bits, sizeof(fifth_bits));
      __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block->codes)));
      codes = _mm256_and_si256(_mm256_srlv_epi16(codes, shifts), nibble);
      codes = _mm256_mask_add_epi8(codes, fifth_bits, codes, sixteen);
      const __m256 dots = _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(start, codes, values));
      const __m256 weight_scale = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(block->scale_f16)));
      sums[r] = _mm256_fmadd_ps(dots, _mm256_mul_ps(weight_scale, scale), sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[r]), _mm256_extractf128_ps(sums[r], 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    out[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

}  // namespace

bool HasQ5Product() { return base::HasAvx512ByteProducts(); }

void PrepareQ5Activations(const float* x, int64_t width, std::byte* prepared) {
  OSCAR_DCHECK(width % kBlock == 0);
  auto* values = reinterpret_cast<int8_t*>(prepared);
  auto* starts = reinterpret_cast<int32_t*>(prepared + width);
  auto* scales = reinterpret_cast<float*>(prepared + 2 * width);
  for (int64_t b = 0; b < width / kBlock; ++b) PrepareBlock(x + b * kBlock, values + b * kBlock, starts + b * kBlock / 4, scales + b);
}

void MultiplyQ5Rows(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out) {
  const Activations x = View(prepared, width);
  const int64_t num_blocks = width / kBlock;
  const auto* blocks = reinterpret_cast<const Q5Block*>(weights);
  int64_t r = first;
  for (; r + 4 <= end; r += 4) MultiplyRows<4>(blocks + r * num_blocks, x, num_blocks, out + r);
  for (; r < end; ++r) MultiplyRows<1>(blocks + r * num_blocks, x, num_blocks, out + r);
}

#else

bool HasQ5Product() { return false; }
void PrepareQ5Activations(const float*, int64_t, std::byte*) { OSCAR_CHECK_MSG(false, "no Q5_0 product on this processor"); }
void MultiplyQ5Rows(const std::byte*, const std::byte*, int64_t, int64_t, int64_t, float*) {
  OSCAR_CHECK_MSG(false, "no Q5_0 product on this processor");
}

#endif

std::size_t Q5ActivationBytes(int64_t width) { return static_cast<std::size_t>(2 * width + width / 8); }

}  // namespace oscar::engine
