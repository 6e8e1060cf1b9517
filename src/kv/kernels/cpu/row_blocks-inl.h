// Rows in blocks whose size is a template parameter: the largest that the registers of the target hold, and even blocks
// rather than a full one and a rest (9 rows are 5 + 4, not 8 + 1).
#if defined(OSCAR_SRC_KV_KERNELS_CPU_ROW_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_SRC_KV_KERNELS_CPU_ROW_BLOCKS_INL_H_
#undef OSCAR_SRC_KV_KERNELS_CPU_ROW_BLOCKS_INL_H_
#else
#define OSCAR_SRC_KV_KERNELS_CPU_ROW_BLOCKS_INL_H_
#endif

#include "src/base/simd_extra-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar::kernels {
namespace HWY_NAMESPACE {

inline constexpr int kMaxRowBlock = base::HWY_NAMESPACE::kManyRegisters ? 8 : 4;

// Calls op.template Run<kRows>(first) for consecutive blocks of at most kMax rows.
template <int kMax = kMaxRowBlock, class Op>
HWY_INLINE void ForRowBlocks(int num_rows, const Op& op) {
  static_assert(kMax == 4 || kMax == 8);
  int num_blocks = (num_rows + kMax - 1) / kMax;
  for (int first = 0; first < num_rows; --num_blocks) {
    const int count = (num_rows - first + num_blocks - 1) / num_blocks;
    switch (count) {
      case 1: op.template Run<1>(first); break;
      case 2: op.template Run<2>(first); break;
      case 3: op.template Run<3>(first); break;
      case 4: op.template Run<4>(first); break;
      default:
        if constexpr (kMax > 4) {
          switch (count) {
            case 5: op.template Run<5>(first); break;
            case 6: op.template Run<6>(first); break;
            case 7: op.template Run<7>(first); break;
            default: op.template Run<8>(first); break;
          }
        }
    }
    first += count;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar::kernels
HWY_AFTER_NAMESPACE();

#endif
