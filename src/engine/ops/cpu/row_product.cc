#include "src/engine/ops/cpu/row_product.h"

#include <ggml.h>

#include "src/engine/ops/cpu/q4_k_product.h"
#include "src/engine/ops/cpu/q5_product.h"

namespace oscar::engine {

const RowProduct* RowProductOf(uint32_t ggml_type) {
  static constexpr RowProduct kQ5{Q5ActivationBytes, PrepareQ5Activations, MultiplyQ5Rows};
  static constexpr RowProduct kQ4K{Q4KActivationBytes, PrepareQ4KActivations, MultiplyQ4KRows};
  if (ggml_type == GGML_TYPE_Q5_0 && HasQ5Product()) return &kQ5;
  if (ggml_type == GGML_TYPE_Q4_K && HasQ4KProduct()) return &kQ4K;
  return nullptr;
}

}  // namespace oscar::engine
