// Demotion of one side of one (page, KV head): BF16 rows are centred and transformed 16 at a time, rounded, and handed to the
// codec's encoder. One encoder for prompt tokens and generated ones (method.md 3.1).
#if defined(OSCAR_SRC_KV_KERNELS_CPU_DEMOTE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_DEMOTE_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_DEMOTE_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_DEMOTE_INL_H_
#endif

#include <cstddef>
#include <span>

#include "src/base/simd_extra-inl.h"
#include "src/kv/kernels/concepts.h"
#include "src/kv/kernels/params.h"
#include "src/kv/transform/apply_transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::kLanes;

// centred[t][c] = x - mu of 16 rows.
inline void CentreRows(const uint16_t* HWY_RESTRICT rows, std::span<const float> mean, size_t d, float* HWY_RESTRICT centred) {
  const F32Tag df;
  for (size_t t = 0; t < kTileTokens; ++t) {
    for (size_t c = 0; c < d; c += kLanes) {
      auto x = base::HWY_NAMESPACE::F32FromBf16Lanes(rows + t * d + c);
      if (!mean.empty()) x = hn::Sub(x, hn::LoadU(df, mean.data() + c));
      hn::StoreU(x, df, centred + t * d + c);
    }
  }
}

inline void RoundRowsToBf16(size_t count, float* HWY_RESTRICT values) {
  const F32Tag df;
  for (size_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::BitCast(df, base::HWY_NAMESPACE::RoundedBf16Bits(hn::LoadU(df, values + i))), df, values + i);
  }
}

template <TileEncoder Codec>
int DemoteSide(const DemoteSideParams& params) {
  const size_t d = static_cast<size_t>(params.head_dim);
  HWY_ALIGN float centred[kTileTokens * kMaxHeadDim];
  HWY_ALIGN float transformed[kTileTokens * kMaxHeadDim];
  for (int slot = 0; slot < kPageTokens; slot += kTileTokens) {
    CentreRows(params.rows + static_cast<size_t>(slot) * d, params.mean, d, centred);
    transform::HWY_NAMESPACE::MapRows</*kFused=*/false>(*params.row.transform, params.row.transform->matrix(),
                                                        base::DenseRows<const float>(centred, params.head_dim), kTileTokens,
                                                        base::DenseRows(transformed, params.head_dim));
    if (Codec::RoundsRows(params.row)) RoundRowsToBf16(kTileTokens * d, transformed);
    const int failed = Codec::EncodeTile(params, slot, transformed);
    if (failed >= 0) return slot + failed;
  }
  return -1;
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
