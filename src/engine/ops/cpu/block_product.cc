#include "src/engine/ops/cpu/block_product.h"

#include <ggml.h>

#include "src/base/check.h"
#include "src/base/cpu_features.h"
#include "src/engine/ops/cpu/block_formats-inl.h"

namespace oscar::engine {

#if defined(__x86_64__)
namespace {

constexpr int64_t kPrefetchBytes = 4096;  // 2 to 6 KiB measure alike; without, memory gives a quarter

// A row of activations: rounded values [width]; for each four of them the start of their dot product (i32), or with minima their sum times
// their scale (f32); scales [width / 32].
std::size_t ActivationBytes(int64_t width) { return static_cast<std::size_t>(2 * width + width / 8); }

template <class Format>
OSCAR_BLOCK_TARGET void Prepare(const float* x, int64_t width, std::byte* prepared) {
  OSCAR_DCHECK(width % kBlock == 0);
  auto* values = reinterpret_cast<int8_t*>(prepared);
  auto* starts = reinterpret_cast<int32_t*>(prepared + width);
  auto* scales = reinterpret_cast<float*>(prepared + 2 * width);
  for (int64_t b = 0; b < width / kBlock; ++b, x += kBlock, values += kBlock) {
    scales[b] = RoundBlock</*kStored=*/true>(x, values);
    for (int i = 0; i < kBlock / 4; ++i, ++starts) {
      const int32_t sum = values[4 * i] + values[4 * i + 1] + values[4 * i + 2] + values[4 * i + 3];
      *starts = Format::kHasMinima ? std::bit_cast<int32_t>(scales[b] * static_cast<float>(sum)) : -(sum << Format::kShift);
    }
  }
}

// kRows rows of weights, so that they share the loads of the activations and hide each other's latency.
template <class Format, int kRows>
OSCAR_BLOCK_TARGET void MultiplyRows(const uint8_t* weights, const std::byte* prepared, int64_t num_blocks, float* out) {
  const int64_t width = num_blocks * kBlock;
  const auto* all_values = reinterpret_cast<const __m256i*>(prepared);
  const std::byte* all_starts = prepared + width;
  const auto* scales = reinterpret_cast<const float*>(prepared + 2 * width);
  __m256 sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = _mm256_setzero_ps();
  for (int64_t b = 0; b < num_blocks; ++b) {
    const __m256i values = _mm256_loadu_si256(all_values + b), start = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(all_starts + b * kBlock));
    const __m256 scale = _mm256_set1_ps(scales[b]);
    // Rows are short, so that the hardware hardly finds their streams; together they are one.
    for (int line = 0; line < kRows * Format::kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(weights) + kPrefetchBytes + b * kRows * Format::kBytes + line, _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* block = weights + (r * num_blocks + b) * Format::kBytes;
      const __m256i dots = _mm256_dpbusd_epi32(Format::kHasMinima ? _mm256_setzero_si256() : start, Format::Codes(block), values);
      sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(_mm256_set1_ps(F32FromF16(block)), scale), sums[r]);
      if (Format::kHasMinima) sums[r] = _mm256_fmadd_ps(_mm256_set1_ps(F32FromF16(block + 2)), _mm256_castsi256_ps(start), sums[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[r]), _mm256_extractf128_ps(sums[r], 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    out[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
}

template <class Format>
void Multiply(const std::byte* weights, const std::byte* prepared, int64_t width, int64_t first, int64_t end, float* out) {
  const int64_t num_blocks = width / kBlock;
  const auto row = [&](int64_t r) { return reinterpret_cast<const uint8_t*>(weights) + r * num_blocks * Format::kBytes; };
  int64_t r = first;
  for (; r + 4 <= end; r += 4) MultiplyRows<Format, 4>(row(r), prepared, num_blocks, out + r);
  for (; r < end; ++r) MultiplyRows<Format, 1>(row(r), prepared, num_blocks, out + r);
}

template <class Format>
constexpr RowProduct kProduct{ActivationBytes, Prepare<Format>, Multiply<Format>};

}  // namespace

const RowProduct* BlockProductOf(uint32_t ggml_type) {
  if (!base::HasAvx512ByteProducts()) return nullptr;
  switch (ggml_type) {
    case GGML_TYPE_Q4_0: return &kProduct<Q4_0>;
    case GGML_TYPE_Q4_1: return &kProduct<Q4_1>;
    case GGML_TYPE_Q5_0: return &kProduct<Q5_0>;
    case GGML_TYPE_Q5_1: return &kProduct<Q5_1>;
    case GGML_TYPE_Q8_0: return &kProduct<Q8_0>;
    default: return nullptr;
  }
}

#else

const RowProduct* BlockProductOf(uint32_t) { return nullptr; }

#endif

}  // namespace oscar::engine
