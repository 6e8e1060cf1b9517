// The attention loops over row codecs: instantiations only, one for all of them.
#include "src/base/simd_targets.h"
#include "src/kv/codec/row_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/codec/row_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kv/kernels/cpu/decode_attention-inl.h"
#include "src/kv/kernels/cpu/prefill_attention-inl.h"
#include "src/kv/kernels/cpu/row_reader-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::codec {
namespace HWY_NAMESPACE {

using kernels::HWY_NAMESPACE::RowReader;

void RowDecode(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::DecodePart<RowReader>(params).Run(); }
void RowPrefill(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::PrefillPart<RowReader>(params).Run(); }
int RowDemote(const kernels::DemoteSideParams& params) { return kernels::HWY_NAMESPACE::DemoteRows(params); }

}  // namespace HWY_NAMESPACE
}  // namespace oscar::codec
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <string>
#include <utility>
#include <vector>

namespace oscar::codec {

HWY_EXPORT(RowDecode);
HWY_EXPORT(RowPrefill);
HWY_EXPORT(RowDemote);

kernels::CodecKernels RowKernels(const kernels::RowCodec& codec) {
  kernels::CodecKernels kernels;
  kernels.decode_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(RowDecode)(params); };
  kernels.prefill_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(RowPrefill)(params); };
  kernels.demote = [](const kernels::DemoteSideParams& params) { return HWY_DYNAMIC_DISPATCH(RowDemote)(params); };
  kernels.row_codec = &codec;
  return kernels;
}

Result<CodecProfile> SharedTransformProfile(const KvMethod& method, const KvShape& shape, KvTransform key, KvTransform value) {
  std::vector<KvTransform> transforms;
  transforms.push_back(std::move(key));
  transforms.push_back(std::move(value));
  std::vector<CodecProfile::Row> rows(static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_kv_heads) * 2);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].transform = static_cast<int>(i % 2);
  return CodecProfile::Create(method.name(), shape, std::move(transforms), std::move(rows), Provenance{});
}

Status CheckPlainRow(const RowProfile& row) {
  if (row.encoder != EncoderKind::kMinMax || row.clip_ratio > 0.0f || row.range_factor != 1.0f || row.mean_kind != MeanKind::kConstant) {
    return {StatusCode::kUnsupported, "this method has no clip, no range factor, no other encoder and no mean that turns"};
  }
  return {};
}

Status CheckHeadDim(const KvMethod& method, int head_dim, int divisor) {
  if (head_dim % divisor == 0) return {};
  return {StatusCode::kUnsupported, method.name() + " needs a head dimension that is a multiple of " + std::to_string(divisor) + ", not " +
                                        std::to_string(head_dim)};
}

}  // namespace oscar::codec
#endif  // HWY_ONCE
