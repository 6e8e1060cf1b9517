// Products of quantised weights with many rows of activations (prefill), on AVX-512 with VNNI. 32 rows of weights at a time become codes of
// 8 bits without sign in the order of the byte dot products, once for all activations; what they were is in the caches then. Activations
// are rounded to 8 bits per block of 32, as ggml rounds them.
//
// A sub-block of weights is s (c - offset), or s c - m where the format has minima. Dot products of codes begin at -offset times the sum of the
// activations; minima are taken off by the rounded sums of the blocks. Each output is one chain of sums in the order of the width, whatever
// the number of rows, activations and threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::engine {

// Rows of weights that a thread takes at a time.
inline constexpr int64_t kTiledProductRows = 32;

// Whether this processor has what the functions below need, and they know the ggml type: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K
// and Q6_K.
bool HasTiledProduct(uint32_t ggml_type);

// Rows of activations from which on unpacking 32 rows of weights costs less than it saves: 8, or 16 for K-quants, of which ggml has good tiles.
// Precondition: HasTiledProduct.
int64_t LeastTiledTokens(uint32_t ggml_type);

// Bytes of `num_tokens` rows of `width` activations as MultiplyTiled takes them. width: a multiple of 32.
std::size_t TiledActivationBytes(int64_t width, int64_t num_tokens);
// Bytes that each thread works in.
std::size_t TiledPanelBytes(int64_t width);

struct TiledActivations {
  std::byte* prepared = nullptr;  // TiledActivationBytes at a multiple of 64 bytes
  int64_t width = 0, num_tokens = 0;
};

// Rounds tokens [first, end) of x [num_tokens, width] f32.
void PrepareTiledActivations(const float* x, const TiledActivations& activations, int64_t first, int64_t end);

struct TiledWeights {
  uint32_t ggml_type = 0;
  const std::byte* data = nullptr;  // [num_rows, width of the activations], as in the file
  int64_t num_rows = 0;
};

// out[token * num_rows + r] = row r of the weights times the activations of the token, for r in [first, end) of all tokens. first: a multiple of
// kTiledProductRows. panel: TiledPanelBytes at a multiple of 64 bytes, of this thread alone.
void MultiplyTiled(const TiledWeights& weights, const TiledActivations& activations, int64_t first, int64_t end, std::byte* panel, float* out);

}  // namespace oscar::engine
