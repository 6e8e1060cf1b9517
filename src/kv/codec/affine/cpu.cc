// CPU kernels of the affine codecs: instantiations only.
#include "src/base/cpu_features.h"
#include "src/base/simd_targets.h"
#include "src/kv/codec/affine/cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/codec/affine/cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kv/codec/affine/byte_attention-inl.h"
#include "src/kv/codec/affine/encode-inl.h"
#include "src/kv/codec/affine/feedback-inl.h"
#include "src/kv/codec/affine/pack-inl.h"
#include "src/kv/codec/affine/tile-inl.h"
#include "src/kv/kernels/cpu/decode_attention-inl.h"
#include "src/kv/kernels/cpu/demote-inl.h"
#include "src/kv/kernels/cpu/prefill_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::affine {
namespace HWY_NAMESPACE {

template <int kBits>
struct AffineEncoder {
  static bool RoundsRows(const RowProfile& row) { return RoundsTransformedRows(row.encoder); }
  static int EncodeTile(const kernels::DemoteSideParams& params, int slot, float* rows) {
    using Layout = PageLayout<kBits>;
    const size_t d = static_cast<size_t>(params.head_dim);
    HWY_ALIGN uint8_t codes[kernels::kTileTokens * kernels::kMaxHeadDim];
    auto* scales = reinterpret_cast<uint16_t*>(params.encoded + Layout::ScalesStart(params.side, params.head_dim));
    auto* offsets = reinterpret_cast<uint16_t*>(params.encoded + Layout::OffsetsStart(params.side, params.head_dim));
    if (params.row.encoder == EncoderKind::kErrorFeedback) {
      const int failed = FeedbackTile<kBits>(rows, d, params.row).Encode(codes, scales + slot, offsets + slot);
      if (failed >= 0) return failed;
    } else {
      for (int t = 0; t < kernels::kTileTokens; ++t) {
        RowGrid grid;
        const size_t first = static_cast<size_t>(t) * d;
        if (!EncodeRow<kBits>(rows + first, d, params.row, grid, codes + first)) return t;
        scales[slot + t] = grid.scale_f16;
        offsets[slot + t] = grid.offset_f16;
      }
    }
    auto* words = reinterpret_cast<uint32_t*>(params.encoded + Layout::CodesStart(params.side, params.head_dim));
    if (params.side == KvSide::kKey) {
      PackKeyTile<kBits>(codes, slot, params.head_dim, words);
    } else {
      PackValueTile<kBits>(codes, slot, params.head_dim, words);
    }
    return -1;
  }
};

// For decode and prefill, where bytes can be multiplied.
#if OSCAR_TARGET_HAS_BYTE_DOTS
template <int kBits>
void Attend(const kernels::AttendPartParams& params) {
#if OSCAR_TARGET_MAY_HAVE_BYTE_DOT_INSTRUCTION
  if (base::HasByteDotInstruction()) return ByteAttentionPart<kBits, true>(params).Run();
#endif
  ByteAttentionPart<kBits, false>(params).Run();
}
template <int kBits>
void Decode(const kernels::AttendPartParams& params) { Attend<kBits>(params); }
template <int kBits>
void Prefill(const kernels::AttendPartParams& params) { Attend<kBits>(params); }
#else
template <int kBits>
void Decode(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::DecodePart<PageReader<kBits>>(params).Run(); }
template <int kBits>
void Prefill(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::PrefillPart<PageReader<kBits>>(params).Run(); }
#endif

void Int1Decode(const kernels::AttendPartParams& params) { Decode<1>(params); }
void Int1Prefill(const kernels::AttendPartParams& params) { Prefill<1>(params); }
int Int1Demote(const kernels::DemoteSideParams& params) { return kernels::HWY_NAMESPACE::DemoteSide<AffineEncoder<1>>(params); }
void Int2Decode(const kernels::AttendPartParams& params) { Decode<2>(params); }
void Int2Prefill(const kernels::AttendPartParams& params) { Prefill<2>(params); }
int Int2Demote(const kernels::DemoteSideParams& params) { return kernels::HWY_NAMESPACE::DemoteSide<AffineEncoder<2>>(params); }
void Int4Decode(const kernels::AttendPartParams& params) { Decode<4>(params); }
void Int4Prefill(const kernels::AttendPartParams& params) { Prefill<4>(params); }
int Int4Demote(const kernels::DemoteSideParams& params) { return kernels::HWY_NAMESPACE::DemoteSide<AffineEncoder<4>>(params); }

}  // namespace HWY_NAMESPACE
}  // namespace oscar::affine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar::affine {

HWY_EXPORT(Int1Decode);
HWY_EXPORT(Int1Prefill);
HWY_EXPORT(Int1Demote);
HWY_EXPORT(Int2Decode);
HWY_EXPORT(Int2Prefill);
HWY_EXPORT(Int2Demote);
HWY_EXPORT(Int4Decode);
HWY_EXPORT(Int4Prefill);
HWY_EXPORT(Int4Demote);

const kernels::CodecKernels& Int1CpuKernels() {
  static constexpr kernels::CodecKernels kKernels = {
      .decode_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Int1Decode)(params); },
      .prefill_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Int1Prefill)(params); },
      .demote = [](const kernels::DemoteSideParams& params) { return HWY_DYNAMIC_DISPATCH(Int1Demote)(params); },
  };
  return kKernels;
}

const kernels::CodecKernels& Int2CpuKernels() {
  static constexpr kernels::CodecKernels kKernels = {
      .decode_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Int2Decode)(params); },
      .prefill_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Int2Prefill)(params); },
      .demote = [](const kernels::DemoteSideParams& params) { return HWY_DYNAMIC_DISPATCH(Int2Demote)(params); },
  };
  return kKernels;
}

const kernels::CodecKernels& Int4CpuKernels() {
  static constexpr kernels::CodecKernels kKernels = {
      .decode_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Int4Decode)(params); },
      .prefill_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Int4Prefill)(params); },
      .demote = [](const kernels::DemoteSideParams& params) { return HWY_DYNAMIC_DISPATCH(Int4Demote)(params); },
  };
  return kKernels;
}

}  // namespace oscar::affine
#endif  // HWY_ONCE
