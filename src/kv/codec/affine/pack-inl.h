// Codes of 16 rows into the words of a page (layout.h). Writing a tile touches no other tile's words, except that with 1 bit
// two tiles of V share a word; a code never changes its neighbour because codes are below 2^bits.
#if defined(OSCAR_SRC_KV_CODEC_AFFINE_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_CODEC_AFFINE_PACK_INL_H_
#undef OSCAR_SRC_KV_CODEC_AFFINE_PACK_INL_H_
#else
#define OSCAR_SRC_KV_CODEC_AFFINE_PACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "src/base/simd_extra-inl.h"
#include "src/kv/codec/affine/layout.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Eight codes, one a byte, as 8 kBits adjacent bits: fields double in width three times.
template <int kBits>
HWY_INLINE uint64_t PackEight(const uint8_t* codes) {
  uint64_t x;
  std::memcpy(&x, codes, 8);  // little-endian, as all our formats
  x = (x | (x >> (8 - kBits))) & (0x0001000100010001ull * ((1ull << 2 * kBits) - 1));
  x = (x | (x >> (16 - 2 * kBits))) & (0x0000000100000001ull * ((1ull << 4 * kBits) - 1));
  return (x | (x >> (32 - 4 * kBits))) & ((1ull << 8 * kBits) - 1);
}

// K: codes [16][d] u8 of tokens slot .. slot + 15 into `words` of the page.
template <int kBits>
void PackKeyTile(const uint8_t* HWY_RESTRICT codes, int slot, int d, uint32_t* HWY_RESTRICT words) {
  using Layout = PageLayout<kBits>;
  for (int token = 0; token < kLaneGroup; ++token) {
    for (int c = 0; c < d; c += Layout::kCodesPerWord) {
      uint64_t word = 0;
      for (int i = 0; i < Layout::kCodesPerWord; i += 8) {
        word |= PackEight<kBits>(codes + static_cast<size_t>(token) * static_cast<size_t>(d) + c + i) << (kBits * i);
      }
      words[Layout::KeyWord(slot + token, c, d)] = static_cast<uint32_t>(word);
    }
  }
}

// V: the same tile with channels in the lanes.
template <int kBits>
void PackValueTile(const uint8_t* HWY_RESTRICT codes, int slot, int d, uint32_t* HWY_RESTRICT words) {
  using Layout = PageLayout<kBits>;
  const base::HWY_NAMESPACE::U32Tag du;
  const hn::Rebind<uint8_t, base::HWY_NAMESPACE::U32Tag> d8;
  constexpr int kStep = static_cast<int>(base::HWY_NAMESPACE::kLanes);
  for (int c = 0; c < d; c += kStep) {
    for (int token = 0; token < kLaneGroup;) {
      uint32_t* word = words + Layout::ValueWord(slot + token, c);
      int shift = Layout::ValueShift(slot + token);
      auto bits = shift == 0 ? hn::Zero(du) : hn::Load(du, word);
      for (; token < kLaneGroup && shift < 32; ++token, shift += kBits) {
        const auto code = hn::PromoteTo(du, hn::LoadU(d8, codes + static_cast<size_t>(token) * static_cast<size_t>(d) + c));
        bits = hn::Or(bits, hn::ShiftLeftSame(code, shift));
      }
      hn::Store(bits, du, word);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#endif
