// What ggml's kernels, and so the order of their sums, depend on: a record is exact only where these are equal. Used by the recorder and
// by the test that reads its records.
#pragma once

#include <cstdint>

#include <ggml-cpu.h>

namespace oscar::oracle {

inline uint32_t ProcessorFlags() {
  const int flags[] = {ggml_cpu_has_avx2(),        ggml_cpu_has_fma(),         ggml_cpu_has_f16c(),        ggml_cpu_has_avx_vnni(),
                       ggml_cpu_has_avx512(),      ggml_cpu_has_avx512_vbmi(), ggml_cpu_has_avx512_vnni(), ggml_cpu_has_avx512_bf16(),
                       ggml_cpu_has_amx_int8(),    ggml_cpu_has_neon(),        ggml_cpu_has_dotprod(),     ggml_cpu_has_matmul_int8(),
                       ggml_cpu_has_llamafile()};
  uint32_t bits = 0;
  for (int flag : flags) bits = bits << 1 | static_cast<uint32_t>(flag != 0);
  return bits;
}

}  // namespace oscar::oracle
