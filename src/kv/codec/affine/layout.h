// Byte geometry of an encoded page of the affine layout, per (64-token page, KV head); README.md beside this file is the
// normative text. Codes lie so that a vector of 32-bit words holds one code of 16 tokens (K) or of 16 channels (V) per shift:
// scores are made with tokens in the lanes, outputs with channels in the lanes, and neither needs a shuffle.
//
//   K: 64 scales f16 | 64 offsets f16 | words [4 token groups][d / C][16 tokens] u32, C = 32 / bits channels a word
//   V: 64 scales f16 | 64 offsets f16 | words [d / 16 channel groups][64 / C][16 channels] u32, C tokens a word
#pragma once

#include <cstddef>

#include "oscar/types.h"

namespace oscar::affine {

inline constexpr int kLaneGroup = 16;  // tokens (K) or channels (V) that share a 64-byte line of words

template <int kBits>
struct PageLayout {
  static_assert(kBits == 1 || kBits == 2 || kBits == 4);
  static constexpr int kCodesPerWord = 32 / kBits;
  static constexpr int kTokenWords = kPageTokens / kCodesPerWord;  // words of a channel in V
  static constexpr int kMetadataBytes = 2 * kPageTokens * 2;       // scales and offsets of one side

  // Head dimensions that fill whole words. (1 bit: multiples of 32.)
  static constexpr bool Fits(int d) { return d % kLaneGroup == 0 && d % kCodesPerWord == 0; }
  static constexpr int ChannelWords(int d) { return d / kCodesPerWord; }  // words of a token in K

  static constexpr std::size_t CodeBytes(int d) { return static_cast<std::size_t>(kPageTokens) * d * kBits / 8; }
  static constexpr std::size_t SideBytes(int d) { return kMetadataBytes + CodeBytes(d); }
  static constexpr std::size_t PageBytes(int d) { return 2 * SideBytes(d); }

  // Byte offsets from the start of the (page, KV head).
  static constexpr std::size_t SideStart(KvSide side, int d) { return side == KvSide::kKey ? 0 : SideBytes(d); }
  static constexpr std::size_t ScalesStart(KvSide side, int d) { return SideStart(side, d); }
  static constexpr std::size_t OffsetsStart(KvSide side, int d) { return SideStart(side, d) + kPageTokens * 2; }
  static constexpr std::size_t CodesStart(KvSide side, int d) { return SideStart(side, d) + kMetadataBytes; }

  // Index of the word, from the start of the codes of its side, that holds the code of (token, channel); the code is at
  // bits [shift, shift + kBits) of that word.
  static constexpr int KeyWord(int token, int channel, int d) {
    return ((token / kLaneGroup) * ChannelWords(d) + channel / kCodesPerWord) * kLaneGroup + token % kLaneGroup;
  }
  static constexpr int KeyShift(int channel) { return kBits * (channel % kCodesPerWord); }
  static constexpr int ValueWord(int token, int channel) {
    return ((channel / kLaneGroup) * kTokenWords + token / kCodesPerWord) * kLaneGroup + channel % kLaneGroup;
  }
  static constexpr int ValueShift(int token) { return kBits * (token % kCodesPerWord); }
};

static_assert(PageLayout<2>::PageBytes(128) == 2 * 64 * (128 / 4 + 4));
static_assert(PageLayout<2>::CodesStart(KvSide::kValue, 64) % 64 == 0, "words are read in aligned 64-byte lines");

}  // namespace oscar::affine
