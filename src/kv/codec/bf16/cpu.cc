// CPU kernels of BF16 pages: instantiations only.
#include "src/base/simd_targets.h"
#include "src/kv/codec/bf16/cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kv/codec/bf16/cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kv/codec/bf16/tile-inl.h"
#include "src/kv/kernels/cpu/append-inl.h"
#include "src/kv/kernels/cpu/decode_attention-inl.h"
#include "src/kv/kernels/cpu/prefill_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::bf16 {
namespace HWY_NAMESPACE {

void Decode(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::DecodePart<PageReader>(params).Run(); }
void Prefill(const kernels::AttendPartParams& params) { kernels::HWY_NAMESPACE::PrefillPart<PageReader>(params).Run(); }
bool StoreRow(const float* row, int head_dim, uint16_t* stored) { return kernels::HWY_NAMESPACE::StoreRow(row, head_dim, stored); }

}  // namespace HWY_NAMESPACE
}  // namespace oscar::bf16
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar::bf16 {

HWY_EXPORT(Decode);
HWY_EXPORT(Prefill);
HWY_EXPORT(StoreRow);

const kernels::CodecKernels& CpuKernels() {
  static constexpr kernels::CodecKernels kKernels = {
      .decode_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Decode)(params); },
      .prefill_attention = [](const kernels::AttendPartParams& params) { HWY_DYNAMIC_DISPATCH(Prefill)(params); },
      .store_row = [](const float* row, int head_dim, uint16_t* stored) { return HWY_DYNAMIC_DISPATCH(StoreRow)(row, head_dim, stored); },
  };
  return kKernels;
}

}  // namespace oscar::bf16
#endif  // HWY_ONCE
