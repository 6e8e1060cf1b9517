#include "src/engine/ops/cpu/q4_k_product.h"

#include "src/base/check.h"
#include "src/base/cpu_features.h"

#if defined(__x86_64__)
// GCC 12 takes the undefined operands of its own intrinsics for ours (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "src/engine/ops/cpu/block_formats-inl.h"

namespace oscar::engine {

#if defined(__x86_64__)
namespace {

constexpr int64_t kSuperBlock = 256;  // values of a block of weights; activations share a scale in blocks of 32
constexpr int64_t kSuperBlockBytes = 144;
constexpr int64_t kPrefetchBytes = 4096;  // as in block_product.cc

// A row of activations: values of 32-blocks 0, 2, 1, 3 of each 128, in the order of the nibbles of 64 bytes; scales, and sums times scales, of each 32.
struct Activations {
  Activations(std::byte* prepared, int64_t width)
      : values(reinterpret_cast<int8_t*>(prepared)), scales(reinterpret_cast<float*>(prepared + width)), scaled_sums(scales + width / kBlock) {}
  int8_t* values;
  float *scales, *scaled_sums;
};

OSCAR_BLOCK_TARGET inline __m512i Load64(const void* bytes) { return _mm512_loadu_si512(bytes); }

OSCAR_BLOCK_TARGET inline uint32_t Load4(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

OSCAR_BLOCK_TARGET inline __m256 F32FromBytes(uint32_t low, uint32_t high) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low))));
}

// kRows rows of weights, so that they share the loads of the activations and hide each other's latency.
template <int kRows>
OSCAR_BLOCK_TARGET void MultiplyRows(const uint8_t* weights, const Activations& x, int64_t num_blocks, float* out) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i two = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(2), 1);  // lanes of 32-block 0, then of 2
  __m512 sums[kRows];
  __m256 minima[kRows];
  for (int r = 0; r < kRows; ++r) {
    sums[r] = _mm512_setzero_ps();
    minima[r] = _mm256_setzero_ps();
  }
  for (int64_t b = 0; b < num_blocks; ++b) {
    const __m256 scales = _mm256_loadu_ps(x.scales + b * 8), scaled_sums = _mm256_loadu_ps(x.scaled_sums + b * 8);
    for (int line = 0; line < kRows * kSuperBlockBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes + b * kRows * kSuperBlockBytes + line, _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* block = weights + (r * num_blocks + b) * kSuperBlockBytes;
      const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(Load4(block))));
      const __m256 scale = _mm256_broadcastss_ps(both), minimum = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
      // Six bits each: four scales, four minima, and the low nibbles of the next four of both, whose high bits lie above the first ones.
      const uint32_t first = Load4(block + 4), second = Load4(block + 8), third = Load4(block + 12);
      const __m256 s = F32FromBytes(first & 0x3F3F3F3F, (third & 0x0F0F0F0F) | ((first >> 2) & 0x30303030));
      const __m256 m = F32FromBytes(second & 0x3F3F3F3F, ((third >> 4) & 0x0F0F0F0F) | ((second >> 2) & 0x30303030));
      minima[r] = _mm256_fmadd_ps(_mm256_mul_ps(m, minimum), scaled_sums, minima[r]);
      const __m512 factors = _mm512_castps256_ps512(_mm256_mul_ps(_mm256_mul_ps(s, scales), scale));
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i codes = Load64(block + 16 + 64 * half);
        const int8_t* values = x.values + b * kSuperBlock + 128 * half;
        const __m512i low = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(codes, nibble), Load64(values));
        const __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble), Load64(values + 64));
        const __m512i at = _mm512_add_epi32(two, _mm512_set1_epi32(4 * half));
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), _mm512_permutexvar_ps(at, factors), sums[r]);
        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_permutexvar_ps(_mm512_add_epi32(at, _mm512_set1_epi32(1)), factors), sums[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    out[r] = _mm512_reduce_add_ps(_mm512_sub_ps(sums[r], _mm512_insertf32x8(_mm512_setzero_ps(), minima[r], 0)));
  }
}

constexpr int kRowsTogether = 4;

}  // namespace

bool HasQ4KProduct() { return base::HasAvx512ByteProducts(); }

void PrepareQ4KActivations(const float* x, int64_t width, std::byte* prepared) {
  OSCAR_DCHECK(width % kSuperBlock == 0);
  const Activations to(prepared, width);
  constexpr int kPlace[4] = {0, 2, 1, 3};
  for (int64_t sub = 0; sub < width / kBlock; ++sub) {
    int8_t* values = to.values + (sub / 4 * 4 + kPlace[sub % 4]) * kBlock;
    to.scales[sub] = RoundBlock</*kStored=*/false>(x + sub * kBlock, values);
    int32_t sum = 0;
    for (int i = 0; i < kBlock; ++i) sum += values[i];
    to.scaled_sums[sub] = to.scales[sub] * static_cast<float>(sum);
  }
}

void MultiplyQ4KRows(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out) {
  const Activations x(const_cast<std::byte*>(prepared), width);
  const int64_t blocks = width / kSuperBlock;
  const auto* rows = reinterpret_cast<const uint8_t*>(weights);
  int64_t r = first;
  for (; r + kRowsTogether <= end; r += kRowsTogether) MultiplyRows<kRowsTogether>(rows + r * blocks * kSuperBlockBytes, x, blocks, out + r);
  for (; r < end; ++r) MultiplyRows<1>(rows + r * blocks * kSuperBlockBytes, x, blocks, out + r);
}

#else

bool HasQ4KProduct() { return false; }
void PrepareQ4KActivations(const float*, int64_t, std::byte*) { OSCAR_CHECK_MSG(false, "no Q4_K product on this processor"); }
void MultiplyQ4KRows(const std::byte*, const std::byte*, int64_t, int64_t, int64_t, float*) { OSCAR_CHECK_MSG(false, "no Q4_K product on this processor"); }

#endif

// Values, scales and scaled sums.
std::size_t Q4KActivationBytes(int64_t width) { return static_cast<std::size_t>(width + 8 * (width / kBlock)); }

}  // namespace oscar::engine
