// Applying a KvTransform to rows. For the encoder, y = (x - mu) A without fused operations, so that encoded bytes are the
// same on every CPU; for queries and outputs, q A^-T and o A^-1 with FMA. Identity and Hadamard need no matrix.
#if defined(OSCAR_SRC_KV_TRANSFORM_APPLY_TRANSFORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_TRANSFORM_APPLY_TRANSFORM_INL_H_
#undef OSCAR_SRC_KV_TRANSFORM_APPLY_TRANSFORM_INL_H_
#else
#define OSCAR_SRC_KV_TRANSFORM_APPLY_TRANSFORM_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <span>

#include "oscar/kv_transform.h"
#include "src/base/simd_extra-inl.h"
#include "src/base/strided_rows.h"
#include "src/kv/transform/hadamard.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::transform {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::F32Tag;
using base::HWY_NAMESPACE::F32Vec;
using base::HWY_NAMESPACE::kLanes;

// Rows and vectors of one tile of accumulators: 16 or 8 of them, enough to hide the latency of an FMA.
inline constexpr int kTileRows = 4;
inline constexpr int kTileVectors = base::HWY_NAMESPACE::kManyRegisters ? 4 : 2;

// Channels [channel, channel + kVectors kLanes) of kRows rows. kFused: one rounding per step (FMA where the target has it);
// otherwise multiply, then add, so that the bits are the same on every target.
template <bool kFused, int kRows, int kVectors>
HWY_INLINE void MultiplyTile(const float* const (&rows)[kTileRows], const float* matrix, int d, int channel,
                             float* const (&out)[kTileRows]) {
  const F32Tag df;
  F32Vec acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(df);
  }
  const float* HWY_RESTRICT lanes = matrix + channel;
  for (int i = 0; i < d; ++i, lanes += d) {
    F32Vec x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = hn::LoadU(df, lanes + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32Vec c = hn::Set(df, rows[r][i]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = kFused ? hn::MulAdd(x[v], c, acc[r][v]) : hn::Add(hn::Mul(x[v], c), acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], df, out[r] + channel + v * kLanes);
  }
}

template <bool kFused, int kRows>
HWY_INLINE void MultiplyRowTile(const float* const (&rows)[kTileRows], const float* matrix, int d,
                                float* const (&out)[kTileRows]) {
  constexpr int kStep = kTileVectors * static_cast<int>(kLanes);
  int channel = 0;
  for (; channel + kStep <= d; channel += kStep) MultiplyTile<kFused, kRows, kTileVectors>(rows, matrix, d, channel, out);
  for (; channel < d; channel += static_cast<int>(kLanes)) MultiplyTile<kFused, kRows, 1>(rows, matrix, d, channel, out);
}

// out = in M for `num_rows` rows; M [d, d] row-major, d a multiple of 16. in and out do not overlap.
template <bool kFused>
void MultiplyRows(base::StridedRows<const float> in, int num_rows, const float* matrix, int d, base::StridedRows<float> out) {
  for (int first = 0; first < num_rows; first += kTileRows) {
    const float* rows[kTileRows] = {};
    float* results[kTileRows] = {};
    const int count = std::min(kTileRows, num_rows - first);
    for (int r = 0; r < count; ++r) rows[r] = in.Row(first + r), results[r] = out.Row(first + r);
    switch (count) {
      case 1: MultiplyRowTile<kFused, 1>(rows, matrix, d, results); break;
      case 2: MultiplyRowTile<kFused, 2>(rows, matrix, d, results); break;
      case 3: MultiplyRowTile<kFused, 3>(rows, matrix, d, results); break;
      default: MultiplyRowTile<kFused, 4>(rows, matrix, d, results); break;
    }
  }
}

// The operations of transform::ApplyHadamard in the same order; butterflies of at least a vector go through registers.
inline void HadamardRow(float* HWY_RESTRICT row, int d) {
  const F32Tag df;
  const size_t n = static_cast<size_t>(d);
  const F32Vec factor = hn::Set(df, HadamardFactor(d));
  for (size_t i = 0; i < n; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(df, row + i), factor), df, row + i);
  for (size_t half = 1; half < n; half *= 2) {
    for (size_t start = 0; start < n; start += 2 * half) {
      if (half >= kLanes) {
        for (size_t i = start; i < start + half; i += kLanes) {
          const F32Vec low = hn::LoadU(df, row + i), high = hn::LoadU(df, row + i + half);
          hn::StoreU(hn::Add(low, high), df, row + i);
          hn::StoreU(hn::Sub(low, high), df, row + i + half);
        }
      } else {
        for (size_t i = start; i < start + half; ++i) {
          const float low = row[i], high = row[i + half];
          row[i] = low + high;
          row[i + half] = low - high;
        }
      }
    }
  }
}

// One map of a transform over rows, d a multiple of 16. kFused as in MultiplyTile; `matrix` is the [d, d] form of the map.
template <bool kFused>
void MapRows(const KvTransform& transform, std::span<const float> matrix, base::StridedRows<const float> in, int num_rows,
             base::StridedRows<float> out) {
  const int d = transform.head_dim();
  if (transform.kind() == TransformKind::kOrthogonal || transform.kind() == TransformKind::kInvertible) {
    MultiplyRows<kFused>(in, num_rows, matrix.data(), d, out);
    return;
  }
  for (int r = 0; r < num_rows; ++r) {
    std::copy_n(in.Row(r), d, out.Row(r));
    if (transform.kind() == TransformKind::kHadamard) HadamardRow(out.Row(r), d);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::transform
HWY_AFTER_NAMESPACE();

#endif
