#include "src/engine/ops/cpu/tiled_product.h"

#include <ggml.h>

#include "src/base/check.h"
#include "src/base/cpu_features.h"

#if defined(__x86_64__)
// GCC 12 takes the undefined operands of its own intrinsics for ours (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "src/engine/ops/cpu/block_formats-inl.h"

namespace oscar::engine {

constexpr int64_t kMostSubs = 2;  // sub-blocks of weights in a block

std::size_t TiledActivationBytes(int64_t width, int64_t num_tokens) {
  const int64_t blocks = width / kBlock;
  // Values, then scales, scaled sums, and negative sums of blocks and of their halves.
  return static_cast<std::size_t>(num_tokens * (width + 4 * blocks * (3 + kMostSubs)));
}

std::size_t TiledPanelBytes(int64_t width) {
  // Codes, scales and minima.
  return static_cast<std::size_t>(kTiledProductRows * (width + 4 * (kMostSubs + 1) * (width / kBlock)));
}

#if defined(__x86_64__)
namespace {

constexpr int64_t kLanes = 16;                                 // rows in a vector
constexpr int kVectors = kTiledProductRows / kLanes;           // vectors of rows
constexpr int kWordsOfBlock = kBlock / 4;                      // of four codes, one per dot product
constexpr int64_t kBlockCodes = kBlock * kTiledProductRows;    // bytes of a block of all rows
constexpr int kMostUnit = 256;                                 // values that the largest format packs together

// What prepared activations hold, token by token.
struct View {
  View(const TiledActivations& activations)
      : width(activations.width),
        blocks(activations.width / kBlock),
        values(reinterpret_cast<int8_t*>(activations.prepared)),
        scales(reinterpret_cast<float*>(activations.prepared + activations.num_tokens * activations.width)),
        scaled_sums(scales + activations.num_tokens * blocks),
        negative_sums(reinterpret_cast<int32_t*>(scaled_sums + activations.num_tokens * blocks)),
        negative_half_sums(negative_sums + activations.num_tokens * blocks) {}
  int64_t width, blocks;
  int8_t* values;               // [tokens, width]
  float* scales;                // [tokens, blocks]
  float* scaled_sums;           // [tokens, blocks]: sum of the values times the scale
  int32_t* negative_sums;       // [tokens, blocks]
  int32_t* negative_half_sums;  // [tokens, 2 blocks]
};

OSCAR_BLOCK_TARGET void PrepareToken(const float* x, const View& to, int64_t token) {
  for (int64_t b = 0; b < to.blocks; ++b, x += kBlock) {
    int8_t* values = to.values + token * to.width + b * kBlock;
    const float scale = RoundBlock</*kStored=*/true>(x, values);
    int32_t halves[2] = {};
    for (int i = 0; i < kBlock / 2; ++i) halves[0] += values[i];
    for (int i = kBlock / 2; i < kBlock; ++i) halves[1] += values[i];
    const int64_t at = token * to.blocks + b;
    to.scales[at] = scale;
    to.scaled_sums[at] = scale * static_cast<float>(halves[0] + halves[1]);
    to.negative_sums[at] = -(halves[0] + halves[1]);
    to.negative_half_sums[2 * at] = -halves[0];
    to.negative_half_sums[2 * at + 1] = -halves[1];
  }
}

OSCAR_BLOCK_TARGET inline void Store32(__m256i value, uint8_t* bytes) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), value); }

// Codes, scale and minimum (what is taken off) of a block of 32.
template <class Format>
OSCAR_BLOCK_TARGET void Decode(const uint8_t* block, uint8_t* codes, float* scales, float* minima) {
  if constexpr (Format::kUnit == kBlock) {
    scales[0] = F32FromF16(block);
    if (Format::kHasMinima) minima[0] = -F32FromF16(block + 2);
    Store32(Format::Codes(block), codes);
  } else {
    Format::Decode(block, codes, scales, minima);
  }
}

// Formats with blocks of 256 values have Decode, which writes codes, scales and minima of one block of the file.

// Scales and minima of 6 bits, shared by Q4_K and Q5_K: d, dmin, then 12 bytes.
OSCAR_BLOCK_TARGET void DecodeScalesOfK(const uint8_t* block, float* scales, float* minima) {
  const float scale = F32FromF16(block), minimum = F32FromF16(block + 2);
  const uint8_t* packed = block + 4;
  for (int j = 0; j < 8; ++j) {
    const int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
    const int m = j < 4 ? packed[j + 4] & 63 : (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
    scales[j] = scale * static_cast<float>(s);
    minima[j] = minimum * static_cast<float>(m);
  }
}
struct Q4_K {
  static constexpr int kUnit = 256, kBytes = 144, kSubs = 1, kShift = 0;
  static constexpr bool kHasMinima = true;
  OSCAR_BLOCK_TARGET static void Decode(const uint8_t* block, uint8_t* codes, float* scales, float* minima) {
    DecodeScalesOfK(block, scales, minima);
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
      const __m256i both = Load32(block + 16 + 32 * j);
      Store32(_mm256_and_si256(both, nibble), codes + 64 * j);
      Store32(_mm256_and_si256(_mm256_srli_epi16(both, 4), nibble), codes + 64 * j + 32);
    }
  }
};
struct Q5_K {
  static constexpr int kUnit = 256, kBytes = 176, kSubs = 1, kShift = 0;
  static constexpr bool kHasMinima = true;
  OSCAR_BLOCK_TARGET static void Decode(const uint8_t* block, uint8_t* codes, float* scales, float* minima) {
    DecodeScalesOfK(block, scales, minima);
    const __m256i nibble = _mm256_set1_epi8(15), sixteen = _mm256_set1_epi8(16), high = Load32(block + 16);
    for (int j = 0; j < 4; ++j) {
      const __m256i both = Load32(block + 48 + 32 * j);
      for (int half = 0; half < 2; ++half) {
        const __m256i codes4 = _mm256_and_si256(half == 0 ? both : _mm256_srli_epi16(both, 4), nibble);
        const __mmask32 fifth = _mm256_test_epi8_mask(high, _mm256_set1_epi8(static_cast<char>(1 << (2 * j + half))));
        Store32(_mm256_mask_add_epi8(codes4, fifth, codes4, sixteen), codes + 64 * j + 32 * half);
      }
    }
  }
};
struct Q6_K {
  static constexpr int kUnit = 256, kBytes = 210, kSubs = 2, kShift = 5;
  static constexpr bool kHasMinima = false;
  OSCAR_BLOCK_TARGET static void Decode(const uint8_t* block, uint8_t* codes, float* scales, float* /*minima*/) {
    const float scale = F32FromF16(block + 208);
    for (int j = 0; j < 16; ++j) scales[j] = scale * static_cast<float>(static_cast<int8_t>(block[192 + j]));
    const __m256i nibble = _mm256_set1_epi8(15), two_bits = _mm256_set1_epi8(0x30);
    for (int n = 0; n < 2; ++n) {
      const __m256i low = Load32(block + 64 * n), next = Load32(block + 64 * n + 32), high = Load32(block + 128 + 32 * n);
      const auto store = [&](__m256i four, __m256i two, int at) OSCAR_BLOCK_TARGET {
        Store32(_mm256_or_si256(_mm256_and_si256(four, nibble), _mm256_and_si256(two, two_bits)), codes + 128 * n + at);
      };
      store(low, _mm256_slli_epi16(high, 4), 0);
      store(next, _mm256_slli_epi16(high, 2), 32);
      store(_mm256_srli_epi16(low, 4), high, 64);
      store(_mm256_srli_epi16(next, 4), _mm256_srli_epi16(high, 2), 96);
    }
  }
};

// 32 codes of 16 rows, `stride` bytes apart, as 8 vectors of one word per row; vectors of a panel lie kVectors apart.
OSCAR_BLOCK_TARGET void TransposeBlock(const uint8_t* codes, int64_t stride, uint8_t* panel) {
  __m512i z[8], t[8], u[8];
  for (int i = 0; i < 8; ++i) {
    z[i] = _mm512_inserti64x4(_mm512_castsi256_si512(Load32(codes + i * stride)), Load32(codes + (i + 8) * stride), 1);
  }
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(z[2 * i], z[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(z[2 * i], z[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  const __m512i first = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0), second = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(panel + i * kVectors * 64, _mm512_permutex2var_epi64(u[i], first, u[i + 4]));
    _mm512_storeu_si512(panel + (i + 4) * kVectors * 64, _mm512_permutex2var_epi64(u[i], second, u[i + 4]));
  }
}

struct Panel {
  uint8_t* codes;  // [blocks, 8 words, kVectors, 16 rows, 4]
  float* scales;   // [blocks, subs, 32 rows]
  float* minima;   // [blocks, 32 rows]
};

// Rows [first, first + 32) of the weights; those from num_rows on are nothing.
template <class Format>
OSCAR_BLOCK_TARGET void Unpack(const TiledWeights& weights, int64_t width, int64_t first, const Panel& panel) {
  constexpr int kBlocksOfUnit = Format::kUnit / kBlock, kScales = kBlocksOfUnit * Format::kSubs;
  alignas(64) uint8_t codes[kLanes * kMostUnit];
  float scales[kScales], minima[kBlocksOfUnit];
  const int64_t units = width / Format::kUnit;
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int v = 0; v < kVectors; ++v) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t row = first + v * kLanes + lane;
        if (row < weights.num_rows) {
          const auto* data = reinterpret_cast<const uint8_t*>(weights.data) + (row * units + unit) * Format::kBytes;
          Decode<Format>(data, codes + lane * Format::kUnit, scales, minima);
        } else {
          std::memset(codes + lane * Format::kUnit, 0, Format::kUnit);
          std::fill_n(scales, kScales, 0.0f);
          std::fill_n(minima, kBlocksOfUnit, 0.0f);
        }
        const int64_t column = v * kLanes + lane;
        for (int j = 0; j < kScales; ++j) panel.scales[(unit * kScales + j) * kTiledProductRows + column] = scales[j];
        if (Format::kHasMinima) {
          for (int j = 0; j < kBlocksOfUnit; ++j) panel.minima[(unit * kBlocksOfUnit + j) * kTiledProductRows + column] = minima[j];
        }
      }
      for (int j = 0; j < kBlocksOfUnit; ++j) {
        TransposeBlock(codes + j * kBlock, Format::kUnit, panel.codes + (unit * kBlocksOfUnit + j) * kBlockCodes + v * 64);
      }
    }
  }
}

// Outputs of kTokens tokens from `token` on for the rows of the panel, of which those in the masks exist.
template <class Format, int kTokens>
OSCAR_BLOCK_TARGET void MultiplyPanel(const Panel& panel, const View& x, int64_t token, const __mmask16 (&masks)[kVectors], int64_t num_rows, float* out) {
  constexpr int kWords = kWordsOfBlock / Format::kSubs;
  __m512 sums[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) sums[t][v] = _mm512_setzero_ps();
  }
  const int8_t* values[kTokens];
  for (int t = 0; t < kTokens; ++t) values[t] = x.values + (token + t) * x.width;
  const uint8_t* codes = panel.codes;
  for (int64_t b = 0; b < x.blocks; ++b) {
    for (int s = 0; s < Format::kSubs; ++s) {
      __m512i dots[kTokens][kVectors];
      for (int t = 0; t < kTokens; ++t) {
        const int64_t at = (token + t) * x.blocks + b;
        const int32_t negative_sum = Format::kSubs == 1 ? x.negative_sums[at] : x.negative_half_sums[2 * at + s];
        for (int v = 0; v < kVectors; ++v) {
          dots[t][v] = Format::kHasMinima ? _mm512_setzero_si512() : _mm512_slli_epi32(_mm512_set1_epi32(negative_sum), Format::kShift);
        }
      }
#pragma GCC unroll 8
      for (int word = 0; word < kWords; ++word) {
        __m512i weights[kVectors];
        for (int v = 0; v < kVectors; ++v) weights[v] = _mm512_load_si512(codes + v * 64);
        codes += kVectors * 64;
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          int32_t four;
          std::memcpy(&four, values[t], sizeof(four));
          values[t] += sizeof(four);
          const __m512i x4 = _mm512_set1_epi32(four);
          for (int v = 0; v < kVectors; ++v) dots[t][v] = _mm512_dpbusd_epi32(dots[t][v], weights[v], x4);
        }
      }
      const float* scales = panel.scales + (b * Format::kSubs + s) * kTiledProductRows;
      for (int v = 0; v < kVectors; ++v) {
        const __m512 scale = _mm512_load_ps(scales + v * kLanes);
        for (int t = 0; t < kTokens; ++t) {
          const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.scales[(token + t) * x.blocks + b]));
          sums[t][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][v]), both, sums[t][v]);
        }
      }
    }
    if (Format::kHasMinima) {
      for (int v = 0; v < kVectors; ++v) {
        const __m512 minimum = _mm512_load_ps(panel.minima + b * kTiledProductRows + v * kLanes);
        for (int t = 0; t < kTokens; ++t) {
          sums[t][v] = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(x.scaled_sums[(token + t) * x.blocks + b]), sums[t][v]);
        }
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) _mm512_mask_storeu_ps(out + (token + t) * num_rows + v * kLanes, masks[v], sums[t][v]);
  }
}

template <class Format>
OSCAR_BLOCK_TARGET void Multiply(const TiledWeights& weights, const TiledActivations& activations, int64_t first, int64_t end, std::byte* memory, float* out) {
  const View x(activations);
  OSCAR_DCHECK(activations.width % Format::kUnit == 0);
  Panel panel;
  panel.codes = reinterpret_cast<uint8_t*>(memory);
  panel.scales = reinterpret_cast<float*>(memory + kTiledProductRows * x.width);
  panel.minima = panel.scales + kTiledProductRows * x.blocks * Format::kSubs;
  for (int64_t row = first; row < end; row += kTiledProductRows) {
    Unpack<Format>(weights, x.width, row, panel);
    __mmask16 masks[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t there = std::clamp<int64_t>(std::min(end, weights.num_rows) - row - v * kLanes, 0, kLanes);
      masks[v] = static_cast<__mmask16>((1u << there) - 1);
    }
    float* to = out + row;
    int64_t token = 0;
    for (; token + 4 <= activations.num_tokens; token += 4) MultiplyPanel<Format, 4>(panel, x, token, masks, weights.num_rows, to);
    switch (activations.num_tokens - token) {
      case 3: MultiplyPanel<Format, 3>(panel, x, token, masks, weights.num_rows, to); break;
      case 2: MultiplyPanel<Format, 2>(panel, x, token, masks, weights.num_rows, to); break;
      case 1: MultiplyPanel<Format, 1>(panel, x, token, masks, weights.num_rows, to); break;
      default: break;
    }
  }
}

// Calls visit(format) with the format of a type; false for one that is not known.
template <class Visit>
bool WithFormat(uint32_t ggml_type, const Visit& visit) {
  switch (ggml_type) {
    case GGML_TYPE_Q4_0: visit(Q4_0()); return true;
    case GGML_TYPE_Q4_1: visit(Q4_1()); return true;
    case GGML_TYPE_Q5_0: visit(Q5_0()); return true;
    case GGML_TYPE_Q5_1: visit(Q5_1()); return true;
    case GGML_TYPE_Q8_0: visit(Q8_0()); return true;
    case GGML_TYPE_Q4_K: visit(Q4_K()); return true;
    case GGML_TYPE_Q5_K: visit(Q5_K()); return true;
    case GGML_TYPE_Q6_K: visit(Q6_K()); return true;
    default: return false;
  }
}

}  // namespace

bool HasTiledProduct(uint32_t ggml_type) {
  return base::HasAvx512ByteProducts() && WithFormat(ggml_type, [](auto) {});
}

int64_t LeastTiledTokens(uint32_t ggml_type) {
  int64_t least = 0;
  const bool known = WithFormat(ggml_type, [&]<class Format>(Format) { least = Format::kUnit == kBlock ? 8 : 16; });
  OSCAR_CHECK(known);
  return least;
}

void PrepareTiledActivations(const float* x, const TiledActivations& activations, int64_t first, int64_t end) {
  OSCAR_DCHECK(activations.width % kBlock == 0);
  const View to(activations);
  for (int64_t token = first; token < end; ++token) PrepareToken(x + token * activations.width, to, token);
}

void MultiplyTiled(const TiledWeights& weights, const TiledActivations& activations, int64_t first, int64_t end, std::byte* panel, float* out) {
  OSCAR_DCHECK(first % kTiledProductRows == 0);
  const bool known = WithFormat(weights.ggml_type, [&]<class Format>(Format) { Multiply<Format>(weights, activations, first, end, panel, out); });
  OSCAR_CHECK(known);
}

#else

bool HasTiledProduct(uint32_t) { return false; }
int64_t LeastTiledTokens(uint32_t) { OSCAR_CHECK_MSG(false, "no tiled product on this processor"); }
void PrepareTiledActivations(const float*, const TiledActivations&, int64_t, int64_t) { OSCAR_CHECK_MSG(false, "no tiled product on this processor"); }
void MultiplyTiled(const TiledWeights&, const TiledActivations&, int64_t, int64_t, std::byte*, float*) {
  OSCAR_CHECK_MSG(false, "no tiled product on this processor");
}

#endif

}  // namespace oscar::engine
