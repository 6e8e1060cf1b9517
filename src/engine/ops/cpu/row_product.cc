#include "src/engine/ops/cpu/row_product.h"

#include <ggml.h>

#include "src/engine/ops/cpu/block_product.h"
#include "src/engine/ops/cpu/q4_k_product.h"

namespace oscar::engine {

const RowProduct* RowProductOf(uint32_t ggml_type) {
  static constexpr RowProduct kQ4K{Q4KActivationBytes, PrepareQ4KActivations, MultiplyQ4KRows};
  if (ggml_type == GGML_TYPE_Q4_K && HasQ4KProduct()) return &kQ4K;
  return BlockProductOf(ggml_type);
}

}  // namespace oscar::engine
