// What a codec gives to the loops of kernels/cpu, as C++20 concepts. The codec's reader is opened on one page at a time;
// codes become f32 in registers (decode) or in a tile of at most 16 tokens (prefill), never a page at once.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "src/kv/kernels/params.h"

namespace oscar::kernels {

// Distances, in floats, that are constants so that addresses fold into the instructions.
inline constexpr std::size_t kQueryStride = kMaxHeadDim + 16;  // rows of queries in decode; the 16 keeps them off one cache set
inline constexpr std::size_t kScoreStride = kPageTokens;       // rows of scores and weights in decode
inline constexpr std::size_t kRowStride = kMaxTileRows;        // channels or tokens of the transposed arrays in prefill

// A reader of pages for decode: tokens in the lanes for scores, channels in the lanes for outputs.
//   Open(page, n)               n tokens of the page may be read
//   Scores<kRows>(q, s)         s[r kScoreStride + t] = q_r . k_t in code space, r < kRows; q_r at q + r kQueryStride
//   FinishScore(t, s, sum)      vector of final scores of tokens t .. from s; sum is the sum of q_r over its channels
//   SplitWeight(t, p, extra)    weights of codes for probabilities p of tokens t ..; adds what offsets contribute to extra
//   AddValues<kRows>(w, o)      o[r d + c] += sum_t w[r kScoreStride + t] v_t[c] in code space
// and for prefill:
//   KeyTile(t, tile)            tile[c kTileTokens + j] = k_(t + j)[c], f32, of 16 tokens; those past n are unspecified but finite
//   ValueTile(t, count, tile)   tile[j d + c] = v_(t + j)[c], f32, of `count` tokens
//
// A reader that needs more than the head dimension and one page is made from the AttendPartParams instead, and has
//   OpenInRun(params, i)        page i of the encoded run, whole
template <class R>
concept OpensInRun = std::constructible_from<R, const AttendPartParams&> &&
                     requires(R reader, const AttendPartParams& params) { reader.OpenInRun(params, 0); };

template <class R>
concept OpensPages = std::constructible_from<R, int> &&  // head_dim
                     requires(R reader, const std::byte* page) { reader.Open(page, 0); };

template <class R>
concept PageReader = requires(const R& opened, const float* in, float* out, int token) {
  requires OpensPages<R> || OpensInRun<R>;
  { R::kHasOffsets } -> std::convertible_to<bool>;
  opened.template Scores<1>(in, out);
  opened.template AddValues<1>(in, out);
  opened.KeyTile(token, out);
  opened.ValueTile(token, token, out);
};

template <PageReader Reader>
Reader MakeReader(const AttendPartParams& params) {
  if constexpr (OpensInRun<Reader>) {
    return Reader(params);
  } else {
    return Reader(params.head_dim);
  }
}

template <PageReader Reader>
void OpenPage(const AttendPartParams& params, int run, int i, int num_tokens, Reader& reader) {
  if constexpr (OpensInRun<Reader>) {
    reader.OpenInRun(params, i);
  } else {
    reader.Open(params.pages + static_cast<std::size_t>(params.runs.ids[run][i]) * params.page_stride, num_tokens);
  }
}

// A codec that encodes tiles of 16 rows:
//   EncodeTile(params, slot, rows)   encodes 16 transformed rows [16, d] f32 (clobbered) into slots slot .. slot + 15 of the
//                                    page; returns the index of the first row that cannot be encoded, or -1
template <class C>
concept TileEncoder = requires(const DemoteSideParams& params, float* rows) {
  { C::EncodeTile(params, 0, rows) } -> std::same_as<int>;
  { C::RoundsRows(params.row) } -> std::same_as<bool>;
};

}  // namespace oscar::kernels
