// Products of Q4_K weights with one row of activations: ours beside ggml's, in one run. The width of Qwen2.5-1.5B; rows that the caches hold,
// and more than they hold.
#include <benchmark/benchmark.h>

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>
#include <random>
#include <vector>

#include "src/base/buffer.h"
#include "src/engine/ops/cpu/q4_k_product.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

constexpr int64_t kWidth = 1536;

base::Buffer RandomWeights(int64_t rows) {
  std::mt19937_64 rng(1);
  constexpr int64_t kDrawn = 64;  // then again
  const std::vector<float> values = testing::NormalVector(rng, kWidth * kDrawn);
  const size_t row_bytes = ggml_row_size(GGML_TYPE_Q4_K, kWidth);
  base::Buffer weights = base::Buffer::Allocate(row_bytes * static_cast<size_t>(rows)).value();
  ggml_quantize_chunk(GGML_TYPE_Q4_K, values.data(), weights.data(), 0, kDrawn, kWidth, nullptr);
  for (int64_t row = kDrawn; row < rows; ++row) {
    std::memcpy(weights.data() + static_cast<size_t>(row) * row_bytes, weights.data() + static_cast<size_t>(row % kDrawn) * row_bytes, row_bytes);
  }
  return weights;
}

void Ours(benchmark::State& state) {
  if (!HasQ4KProduct()) return state.SkipWithError("not on this processor");
  const int64_t rows = state.range(0);
  const base::Buffer weights = RandomWeights(rows);
  std::vector<float> x(kWidth, 0.5f), out(static_cast<size_t>(rows));
  const base::Buffer prepared = base::Buffer::Allocate(Q4KActivationBytes(kWidth)).value();
  for (auto _ : state) {
    PrepareQ4KActivations(x.data(), kWidth, prepared.data());
    MultiplyQ4KRows(weights.data(), prepared.data(), kWidth, 0, rows, out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * kWidth);
}

void Ggml(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const base::Buffer weights = RandomWeights(rows);
  std::vector<float> x(kWidth, 0.5f), out(static_cast<size_t>(rows));
  const base::Buffer rounded = base::Buffer::Allocate(ggml_row_size(GGML_TYPE_Q8_K, kWidth)).value();
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(GGML_TYPE_Q4_K);
  for (auto _ : state) {
    ggml_get_type_traits_cpu(GGML_TYPE_Q8_K)->from_float(x.data(), rounded.data(), kWidth);
    for (int64_t r = 0; r < rows; ++r) {
      traits->vec_dot(static_cast<int>(kWidth), &out[static_cast<size_t>(r)], 0, weights.data() + ggml_row_size(GGML_TYPE_Q4_K, kWidth) * static_cast<size_t>(r),
                      0, rounded.data(), 0, 1);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * kWidth);
}

BENCHMARK(Ggml)->Arg(1024)->Arg(131072);
BENCHMARK(Ours)->Arg(1024)->Arg(131072);

}  // namespace
}  // namespace oscar::engine
