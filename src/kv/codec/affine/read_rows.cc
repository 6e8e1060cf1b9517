#include "src/kv/codec/affine/read_rows.h"

#include <cstdint>
#include <cstring>

#include "src/base/float_bits.h"
#include "src/kv/codec/affine/layout.h"

namespace oscar::affine {
namespace {

template <class T>
T LoadAt(const std::byte* bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

template <int kBits>
void ReadRows(KvSide side, int head_dim, const std::byte* page, float* rows) {
  using Layout = PageLayout<kBits>;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  const std::byte* codes = page + Layout::CodesStart(side, head_dim);
  for (int t = 0; t < kPageTokens; ++t) {
    const float scale = base::F32FromF16(LoadAt<uint16_t>(page + Layout::ScalesStart(side, head_dim), static_cast<std::size_t>(t)));
    const float offset = base::F32FromF16(LoadAt<uint16_t>(page + Layout::OffsetsStart(side, head_dim), static_cast<std::size_t>(t)));
    for (int c = 0; c < head_dim; ++c) {
      const bool is_key = side == KvSide::kKey;
      const int word = is_key ? Layout::KeyWord(t, c, head_dim) : Layout::ValueWord(t, c);
      const int shift = is_key ? Layout::KeyShift(c) : Layout::ValueShift(t);
      const uint32_t code = LoadAt<uint32_t>(codes, static_cast<std::size_t>(word)) >> shift & kMask;
      rows[t * head_dim + c] = offset + scale * static_cast<float>(code);
    }
  }
}

template void ReadRows<1>(KvSide, int, const std::byte*, float*);
template void ReadRows<2>(KvSide, int, const std::byte*, float*);
template void ReadRows<4>(KvSide, int, const std::byte*, float*);

}  // namespace oscar::affine
