// Running an attention plan on an Executor: queries into code space, parts, merge, outputs out of code space. Knows no codec
// beyond its two kernels.
#pragma once

#include "oscar/executor.h"
#include "oscar/kernels.h"
#include "src/kv/kernels/attend_plan.h"
#include "src/kv/kernels/codec_kernels.h"

namespace oscar::kernels {

struct AttendKernels {
  const CodecKernels* bf16 = nullptr;
  const CodecKernels* encoded = nullptr;  // null for the bf16 method
  std::size_t encoded_head_bytes = 0;     // of one (page, KV head)
};

// Precondition: params were checked, and the plan made from them.
void RunAttend(const KernelContext& context, const AttendParams& params, const AttendKernels& kernels, const AttendPlan& plan);

}  // namespace oscar::kernels
