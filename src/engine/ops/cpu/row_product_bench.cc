// Products of quantised weights with one row of activations: ours beside ggml's, in one run. Q5_0 and Q8_0 in sizes of Qwen2.5-0.5B, Q4_1 of SmolLM2, Q4_K in
// the width of Qwen2.5-1.5B; rows that the caches hold, and more than they hold.
#include <benchmark/benchmark.h>

#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>
#include <random>
#include <vector>

#include "src/base/buffer.h"
#include "src/engine/ops/cpu/row_product.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

base::Buffer RandomWeights(ggml_type type, int64_t width, int64_t rows) {
  std::mt19937_64 rng(1);
  constexpr int64_t kDrawn = 64;  // then again
  const std::vector<float> values = testing::NormalVector(rng, static_cast<size_t>(width * kDrawn));
  const size_t row_bytes = ggml_row_size(type, width);
  base::Buffer weights = base::Buffer::Allocate(row_bytes * static_cast<size_t>(rows)).value();
  ggml_quantize_chunk(type, values.data(), weights.data(), 0, kDrawn, width, nullptr);
  for (int64_t row = kDrawn; row < rows; ++row) {
    std::memcpy(weights.data() + static_cast<size_t>(row) * row_bytes, weights.data() + static_cast<size_t>(row % kDrawn) * row_bytes, row_bytes);
  }
  return weights;
}

void Ours(benchmark::State& state, ggml_type type, int64_t width) {
  const RowProduct* const product = RowProductOf(type);
  if (product == nullptr) return state.SkipWithError("not on this processor");
  const int64_t rows = state.range(0);
  const base::Buffer weights = RandomWeights(type, width, rows);
  std::vector<float> x(static_cast<size_t>(width), 0.5f), out(static_cast<size_t>(rows));
  const base::Buffer prepared = base::Buffer::Allocate(product->activation_bytes(width)).value();
  for (auto _ : state) {
    product->prepare(x.data(), width, prepared.data());
    product->multiply(weights.data(), prepared.data(), width, 0, rows, out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * width);
}

void Ggml(benchmark::State& state, ggml_type type, int64_t width) {
  const int64_t rows = state.range(0);
  const base::Buffer weights = RandomWeights(type, width, rows);
  std::vector<float> x(static_cast<size_t>(width), 0.5f), out(static_cast<size_t>(rows));
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(type);
  const base::Buffer rounded = base::Buffer::Allocate(ggml_row_size(traits->vec_dot_type, width)).value();
  for (auto _ : state) {
    ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float(x.data(), rounded.data(), width);
    for (int64_t r = 0; r < rows; ++r) {
      traits->vec_dot(static_cast<int>(width), &out[static_cast<size_t>(r)], 0, weights.data() + ggml_row_size(type, width) * static_cast<size_t>(r), 0,
                      rounded.data(), 0, 1);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * rows * width);
}

BENCHMARK_CAPTURE(Ggml, q5_0, GGML_TYPE_Q5_0, 896)->Arg(128)->Arg(896)->Arg(4864)->Arg(131072);
BENCHMARK_CAPTURE(Ours, q5_0, GGML_TYPE_Q5_0, 896)->Arg(128)->Arg(896)->Arg(4864)->Arg(131072);
BENCHMARK_CAPTURE(Ggml, q4_1, GGML_TYPE_Q4_1, 576)->Arg(576)->Arg(131072);
BENCHMARK_CAPTURE(Ours, q4_1, GGML_TYPE_Q4_1, 576)->Arg(576)->Arg(131072);
BENCHMARK_CAPTURE(Ggml, q8_0, GGML_TYPE_Q8_0, 896)->Arg(896)->Arg(131072);
BENCHMARK_CAPTURE(Ours, q8_0, GGML_TYPE_Q8_0, 896)->Arg(896)->Arg(131072);
BENCHMARK_CAPTURE(Ggml, q4_k, GGML_TYPE_Q4_K, 1536)->Arg(1024)->Arg(131072);
BENCHMARK_CAPTURE(Ours, q4_k, GGML_TYPE_Q4_K, 1536)->Arg(1024)->Arg(131072);

}  // namespace
}  // namespace oscar::engine
