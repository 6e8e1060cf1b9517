// Products of Q5_0 weights with one row of activations: ours beside ggml's, in one run. Sizes of Qwen2.5-0.5B, and one
// that no cache holds.
#include <benchmark/benchmark.h>

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>
#include <random>
#include <vector>

#include "src/base/buffer.h"
#include "src/engine/ops/cpu/q5_product.h"

namespace oscar::engine {
namespace {

constexpr int64_t kWidth = 896;

base::Buffer RandomWeights(int64_t rows) {
  std::mt19937_64 rng(1);
  base::Buffer weights = base::Buffer::Allocate(ggml_row_size(GGML_TYPE_Q5_0, kWidth) * static_cast<size_t>(rows)).value();
  for (size_t i = 0; i + 8 <= weights.size(); i += 8) {
    const uint64_t bits = rng();
    std::memcpy(weights.data() + i, &bits, 8);
  }
  for (size_t block = 0; block < weights.size(); block += ggml_type_size(GGML_TYPE_Q5_0)) weights.data()[block + 1] = std::byte{0x2C};  // 2^-4
  return weights;
}

void Ours(benchmark::State& state) {
  if (!HasQ5Product()) return state.SkipWithError("not on this processor");
  const int64_t rows = state.range(0);
  const base::Buffer weights = RandomWeights(rows);
  std::vector<float> x(kWidth, 0.5f), out(static_cast<size_t>(rows));
  const base::Buffer prepared = base::Buffer::Allocate(Q5ActivationBytes(kWidth)).value();
  for (auto _ : state) {
    PrepareQ5Activations(x.data(), kWidth, prepared.data());
    MultiplyQ5Rows(weights.data(), prepared.data(), kWidth, 0, rows, out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * kWidth);
}

void Ggml(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const base::Buffer weights = RandomWeights(rows);
  std::vector<float> x(kWidth, 0.5f), out(static_cast<size_t>(rows));
  const base::Buffer rounded = base::Buffer::Allocate(ggml_row_size(GGML_TYPE_Q8_0, kWidth)).value();
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(GGML_TYPE_Q5_0);
  for (auto _ : state) {
    ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float(x.data(), rounded.data(), kWidth);
    for (int64_t r = 0; r < rows; ++r) {
      traits->vec_dot(static_cast<int>(kWidth), &out[static_cast<size_t>(r)], 0, weights.data() + ggml_row_size(GGML_TYPE_Q5_0, kWidth) * static_cast<size_t>(r),
                      0, rounded.data(), 0, 1);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * kWidth);
}

BENCHMARK(Ggml)->Arg(128)->Arg(896)->Arg(4864)->Arg(131072);
BENCHMARK(Ours)->Arg(128)->Arg(896)->Arg(4864)->Arg(131072);

}  // namespace
}  // namespace oscar::engine
