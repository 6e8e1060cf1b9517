// Products of quantised weights with the rows of a prefill step on one thread: ours beside ggml's, in one run. 896 rows and columns as in
// Qwen2.5-0.5B, 1,536 as in 1.5B (K-quants want multiples of 256).
#include <benchmark/benchmark.h>

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "src/base/buffer.h"
#include "src/engine/ops/cpu/tiled_product.h"
#include "src/testing/seeds.h"

namespace oscar::engine {
namespace {

int64_t WidthOf(ggml_type type) { return ggml_blck_size(type) == 256 ? 1536 : 896; }

struct Product {
  Product(ggml_type weight_type, int64_t num_tokens) : type(weight_type), width(WidthOf(weight_type)), rows(width), tokens(num_tokens) {
    std::mt19937_64 rng(1);
    weights = base::Buffer::Allocate(ggml_row_size(type, width) * static_cast<size_t>(rows)).value();
    const std::vector<float> values = testing::NormalVector(rng, static_cast<size_t>(width * rows));
    ggml_quantize_chunk(type, values.data(), weights.data(), 0, rows, width, nullptr);
    x = testing::NormalVector(rng, static_cast<size_t>(width * tokens));
    out.resize(static_cast<size_t>(rows * tokens));
  }
  ggml_type type;
  int64_t width, rows, tokens;
  base::Buffer weights;
  std::vector<float> x, out;
};

void Ours(benchmark::State& state, ggml_type type) {
  if (!HasTiledProduct(type)) return state.SkipWithError("not on this processor");
  Product product(type, state.range(0));
  base::Buffer prepared = base::Buffer::Allocate(TiledActivationBytes(product.width, product.tokens)).value();
  base::Buffer panel = base::Buffer::Allocate(TiledPanelBytes(product.width)).value();
  const TiledActivations activations{prepared.data(), product.width, product.tokens};
  for (auto _ : state) {
    PrepareTiledActivations(product.x.data(), activations, 0, product.tokens);
    MultiplyTiled({static_cast<uint32_t>(type), product.weights.data(), product.rows}, activations, 0, product.rows, panel.data(), product.out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * product.tokens * product.rows * product.width);
}

void Ggml(benchmark::State& state, ggml_type type) {
  Product product(type, state.range(0));
  ggml_context* context = ggml_init({.mem_size = size_t{1} << 20, .mem_buffer = nullptr, .no_alloc = true});
  ggml_tensor* weights = ggml_new_tensor_2d(context, type, product.width, product.rows);
  ggml_tensor* x = ggml_new_tensor_2d(context, GGML_TYPE_F32, product.width, product.tokens);
  ggml_tensor* out = ggml_mul_mat(context, weights, x);
  weights->data = product.weights.data();
  x->data = product.x.data();
  out->data = product.out.data();
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, out);
  ggml_cplan plan = ggml_graph_plan(graph, 1, nullptr);
  base::Buffer work = base::Buffer::Allocate(std::max<size_t>(plan.work_size, 64)).value();
  plan.work_data = reinterpret_cast<uint8_t*>(work.data());
  for (auto _ : state) {
    if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS) state.SkipWithError("ggml failed");
    benchmark::ClobberMemory();
  }
  ggml_free(context);
  state.SetItemsProcessed(state.iterations() * product.tokens * product.rows * product.width);
}

void Both(const char* name, ggml_type type) {
  benchmark::RegisterBenchmark((std::string("Ggml/") + name).c_str(), Ggml, type)->Arg(16)->Arg(64)->Arg(512);
  benchmark::RegisterBenchmark((std::string("Ours/") + name).c_str(), Ours, type)->Arg(16)->Arg(64)->Arg(512);
}

const bool kRegistered = [] {
  Both("q4_0", GGML_TYPE_Q4_0);
  Both("q4_1", GGML_TYPE_Q4_1);
  Both("q5_0", GGML_TYPE_Q5_0);
  Both("q8_0", GGML_TYPE_Q8_0);
  Both("q4_k", GGML_TYPE_Q4_K);
  Both("q5_k", GGML_TYPE_Q5_K);
  Both("q6_k", GGML_TYPE_Q6_K);
  return true;
}();

}  // namespace
}  // namespace oscar::engine
